//! Threads that read and write attributes: a driver may take long for that, and neither samples nor other devices must wait.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

use super::context::Context;
use crate::poll::{self, Bell};

/// Most threads for devices, each of which has one while there are no more devices than that.
const MOST_THREADS: usize = 16;
/// The place of the thread that lists devices.
const LISTER: usize = MOST_THREADS;
/// After so long without a job, a thread ends.
const IDLE: Duration = Duration::from_secs(10);
/// No client has this token.
pub(super) const SERVER: u64 = 0;

/// An answer to a client.
#[derive(Debug)]
pub(super) enum Answer {
    Number(i64),
    Value(Vec<u8>),
    /// A file for the server, which then answers.
    File(OwnedFd),
    /// For the server itself: ids of all devices, and those that could be described.
    Devices(Vec<String>, Context),
}

/// Computes an answer.
pub(super) type Job = Box<dyn FnOnce() -> Result<Answer, Errno> + Send>;

/// What a job has come to.
#[derive(Debug)]
pub(super) struct Done {
    pub client: u64,
    /// The number that [`Worker::ask`] has returned.
    pub job: u64,
    pub answer: Result<Answer, Errno>,
}

/// The threads. They end when this is dropped, each after the job that it does then.
#[derive(Debug)]
pub(super) struct Worker {
    lanes: Vec<Arc<Lane>>,
    next: AtomicU64,
    done: Sender<Done>,
    answers: Receiver<Done>,
    bell: Arc<Bell>,
}

/// The jobs of a thread, which is started when there is one.
#[derive(Default)]
struct Lane {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<(u64, u64, Job)>,
    has_thread: bool,
    is_over: bool,
}

impl Worker {
    pub(super) fn new() -> crate::Result<Self> {
        let (done, answers) = channel();
        let lanes = (0..=LISTER).map(|_| Arc::default()).collect();
        Ok(Self { lanes, next: AtomicU64::new(0), done, answers, bell: Arc::new(Bell::new()?) })
    }

    /// Has a job of a device done for a client, which has at most one. Returns its number.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if no thread can be started.
    pub(super) fn ask(&self, client: u64, device: usize, job: Job) -> Result<u64, Errno> {
        self.add(client, device % MOST_THREADS, job)
    }

    /// Has a job done for the server itself, which has at most one.
    pub(super) fn list(&self, job: Job) -> Result<u64, Errno> {
        self.add(SERVER, LISTER, job)
    }

    fn add(&self, client: u64, lane: usize, job: Job) -> Result<u64, Errno> {
        let lane = &self.lanes[lane];
        let mut queue = lane.queue();
        if !queue.has_thread {
            let (lane, done, bell) = (Arc::clone(lane), self.done.clone(), Arc::clone(&self.bell));
            let started = poll::spawn("busbar-iiod", move || lane.work(&done, &bell));
            started.map_err(|_| Errno::AGAIN)?;
            queue.has_thread = true;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        queue.jobs.push_back((client, number, job));
        lane.changed.notify_one();
        Ok(number)
    }

    /// Drops what was to be done for a client. A job that has begun goes on, and its answer comes.
    pub(super) fn forget(&self, client: u64) {
        for lane in &self.lanes {
            lane.queue().jobs.retain(|(of, ..)| *of != client);
        }
    }

    /// The answers that there are.
    pub(super) fn answers(&self) -> Vec<Done> {
        self.bell.clear();
        self.answers.try_iter().collect()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        for lane in &self.lanes {
            let mut queue = lane.queue();
            queue.is_over = true;
            queue.jobs.clear();
            lane.changed.notify_all();
        }
    }
}

impl AsFd for Worker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl Lane {
    /// No job is done while it is locked, so that it is never left half changed.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, done: &Sender<Done>, bell: &Bell) {
        while let Some((client, number, job)) = self.next() {
            if done.send(Done { client, job: number, answer: job() }).is_ok() {
                // An eventfd that exists can be rung.
                let _ = bell.ring();
            }
        }
    }

    /// The next job; `None` if the thread is to end.
    fn next(&self) -> Option<(u64, u64, Job)> {
        let is_idle = |queue: &mut Queue| queue.jobs.is_empty() && !queue.is_over;
        let waited = self.changed.wait_timeout_while(self.queue(), IDLE, is_idle);
        let (mut queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let job = queue.jobs.pop_front();
        queue.has_thread = job.is_some();
        job
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    /// A job that waits for a word, and then answers with a number.
    fn waits(number: i64) -> (Job, Sender<()>) {
        let (go, waits): (_, Receiver<()>) = channel();
        let job = move || {
            let _ = waits.recv();
            Ok(Answer::Number(number))
        };
        (Box::new(job), go)
    }

    fn next(worker: &Worker) -> Done {
        worker.answers.recv().unwrap()
    }

    #[test]
    fn a_device_that_is_slow_stops_no_other() {
        let worker = Worker::new().unwrap();
        let (slow, go) = waits(1);
        let first = worker.ask(7, 0, slow).unwrap();
        let second = worker.ask(8, 1, Box::new(|| Ok(Answer::Number(2)))).unwrap();
        let done = next(&worker);
        assert_eq!((done.client, done.job), (8, second));
        drop(go);
        let done = next(&worker);
        assert_eq!((done.client, done.job), (7, first));
    }

    #[test]
    fn jobs_of_a_client_that_has_gone_are_not_done() {
        let worker = Worker::new().unwrap();
        let (slow, go) = waits(1);
        worker.ask(7, 0, slow).unwrap();
        let never = || Ok(Answer::Number(2));
        (0..100).for_each(|_| assert!(worker.ask(8, 0, Box::new(never)).is_ok()));
        let last = worker.ask(9, 0, Box::new(|| Ok(Answer::Number(3)))).unwrap();
        worker.forget(8);
        drop(go);
        assert_eq!(next(&worker).client, 7);
        let done = next(&worker);
        assert_eq!((done.client, done.job), (9, last));
    }

    #[test]
    fn threads_are_as_many_as_devices_and_limited() {
        let worker = Worker::new().unwrap();
        let threads = || worker.lanes.iter().filter(|lane| lane.queue().has_thread).count();
        assert_eq!(threads(), 0);
        let jobs: Vec<_> = (0..100).map(waits).collect();
        let mut go = Vec::new();
        for (device, (job, word)) in jobs.into_iter().enumerate() {
            worker.ask(7, device, job).unwrap();
            go.push(word);
            assert_eq!(threads(), MOST_THREADS.min(device + 1));
        }
        drop(go);
        (0..100).for_each(|_| drop(next(&worker)));
    }
}
