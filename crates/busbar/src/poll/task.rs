//! Work that may wait, in a thread of its own.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, TryRecvError};

use rustix::io::Errno;

use super::{Bell, spawn};
use crate::{Error, Result};

/// The result of work that a thread does: opening an end that another machine may keep waiting, or finding the address
/// of a host.
///
/// The thread ends with the work. Dropping the task does not wait for it; the result is then dropped in the thread. Its
/// owner has at most one at a time, and the work has a limit of its own, so threads neither add up nor stay.
#[derive(Debug)]
pub(crate) struct Task<T> {
    what: String,
    result: mpsc::Receiver<Result<T>>,
    /// Rings once there is a result.
    bell: Arc<Bell>,
}

impl<T: Send + 'static> Task<T> {
    /// Starts the work; `what` names it in errors.
    pub(crate) fn start(
        what: &str,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<Self> {
        let bell = Arc::new(Bell::new()?);
        let (to, result) = mpsc::channel();
        let rings = Ring(Arc::clone(&bell));
        spawn("busbar-task", move || {
            // Dropped in the opposite order: it rings last, also if the work panics.
            let _rings = rings;
            let to = to;
            // Nobody may want it any more.
            let _ = to.send(work());
        })?;
        Ok(Self { what: what.into(), result, bell })
    }

    /// The result, once there is one. It is returned once.
    pub(crate) fn take(&self) -> Option<Result<T>> {
        match self.result.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Empty) => None,
            // The work has panicked.
            Err(TryRecvError::Disconnected) => {
                Some(Err(Error::new("do", self.what.as_str(), Errno::IO)))
            }
        }
    }
}

/// Readable once there is a result.
impl<T> AsFd for Task<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// Rings when it is dropped.
struct Ring(Arc<Bell>);

impl Drop for Ring {
    fn drop(&mut self) {
        // Writing to an open eventfd cannot fail here.
        let _ = self.0.ring();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use rustix::event::PollFlags;

    use super::*;
    use crate::poll;

    #[test]
    fn a_task_is_readable_once_its_work_is_done() {
        let (go, wait) = mpsc::channel::<()>();
        let task = Task::start("a test", move || Ok(wait.recv().is_ok())).unwrap();
        assert!(task.take().is_none());
        go.send(()).unwrap();
        assert!(!poll::wait(&task, PollFlags::IN, None).unwrap().is_empty());
        assert!(task.take().unwrap().unwrap());
    }

    #[test]
    fn the_result_of_a_dropped_task_is_dropped() {
        let ((go, wait), (dropped, is_dropped)) = (mpsc::channel::<()>(), mpsc::channel::<()>());
        let task = Task::start("a test", move || {
            let _ = wait.recv();
            Ok(dropped)
        });
        drop(task.unwrap());
        go.send(()).unwrap();
        assert!(is_dropped.recv().is_err());
    }

    #[test]
    fn work_that_panics_is_an_error() {
        let task: Task<()> = Task::start("a test", || panic!("on purpose")).unwrap();
        assert!(!poll::wait(&task, PollFlags::IN, None).unwrap().is_empty());
        assert!(task.take().unwrap().is_err());
    }
}
