//! A thread that reads and writes attributes: a driver may take long for that, and samples must not wait.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};

use rustix::io::Errno;

use crate::poll::{self, Bell};

/// Most jobs that wait.
const MOST_JOBS: usize = 1024;

/// An answer to a client.
#[derive(Debug)]
pub(super) enum Answer {
    Number(i64),
    Value(Vec<u8>),
    /// A file for the server, which then answers.
    File(OwnedFd),
}

/// Computes an answer.
pub(super) type Job = Box<dyn FnOnce() -> Result<Answer, Errno> + Send>;

/// The thread. It ends when this is dropped, after the job that it does then.
#[derive(Debug)]
pub(super) struct Worker {
    jobs: SyncSender<(u64, Job)>,
    answers: Receiver<(u64, Result<Answer, Errno>)>,
    bell: Arc<Bell>,
}

impl Worker {
    pub(super) fn start() -> crate::Result<Self> {
        let (jobs, todo) = sync_channel::<(u64, Job)>(MOST_JOBS);
        let (done, answers) = channel();
        let bell = Arc::new(Bell::new()?);
        let rung = Arc::clone(&bell);
        let work = move || {
            for (client, job) in todo {
                if done.send((client, job())).is_err() {
                    break;
                }
                // An eventfd that exists can be rung.
                let _ = rung.ring();
            }
        };
        poll::spawn("busbar-iiod", work)?;
        Ok(Self { jobs, answers, bell })
    }

    /// Has a job done for a client, which has at most one. Returns whether there is room: clients that have gone may
    /// have left some.
    pub(super) fn ask(&self, client: u64, job: Job) -> bool {
        self.jobs.try_send((client, job)).is_ok()
    }

    /// The answers that there are.
    pub(super) fn answers(&self) -> Vec<(u64, Result<Answer, Errno>)> {
        self.bell.clear();
        self.answers.try_iter().collect()
    }
}

impl AsFd for Worker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
