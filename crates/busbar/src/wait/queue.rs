//! Changes that are made at the next wait.
//!
//! Each shares its descriptor, which stays open until the change is made: as long as something is queued for
//! a number, it belongs to one file. The changes are kept in order. For one number there is at most a
//! removal, then an addition, then a change: a later one replaces those that it makes void, and never becomes
//! another kind of change. So
//!
//! - an addition voids the additions and changes before it, but not the removal before it;
//! - a removal voids everything before it, and is always made itself: the addition that it
//!   voids might have failed because the file was there already. It succeeds even if there is
//!   nothing to remove.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, RawFd};
use std::sync::Arc;

use busbar_uapi::epoll::{CTL_ADD, CTL_DEL, EpollCtlCmd};
use rustix::io::Errno;

use super::changes::Failure;

/// `op` of a command that a later one has made void.
const VOID: i32 = 0;

/// The indices of the commands that are queued for one number.
#[derive(Clone, Copy, Debug, Default)]
struct Slots {
    remove: Option<usize>,
    add: Option<usize>,
    change: Option<usize>,
}

/// A descriptor that is kept open.
pub(super) type Shared = Arc<dyn AsFd + Send + Sync>;

#[derive(Default)]
pub(super) struct Queue {
    commands: Vec<EpollCtlCmd>,
    slots: HashMap<RawFd, Slots>,
    /// The descriptors of the commands.
    held: Vec<Shared>,
    pub(super) failures: Vec<Failure>,
}

impl Queue {
    /// Appends a command; returns whether something was queued for its number.
    pub(super) fn push(&mut self, command: EpollCtlCmd) -> bool {
        let slots = self.slots.entry(command.fd).or_default();
        let had = slots.remove.is_some() || slots.add.is_some() || slots.change.is_some();
        let here = Some(self.commands.len());
        let void = match command.op {
            CTL_DEL => {
                [slots.remove.replace(self.commands.len()), slots.add.take(), slots.change.take()]
            }
            CTL_ADD => [std::mem::replace(&mut slots.add, here), slots.change.take(), None],
            _ => [std::mem::replace(&mut slots.change, here), None, None],
        };
        for index in void.into_iter().flatten() {
            self.commands[index].op = VOID;
        }
        self.commands.push(command);
        had
    }

    /// Keeps a descriptor open until [`run`](Self::run).
    pub(super) fn hold(&mut self, fd: Shared) {
        self.held.push(fd);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.commands.is_empty() && self.held.is_empty() && self.failures.is_empty()
    }

    /// Passes all commands to `run`, which does them in order and sets the result of each.
    ///
    /// Keeps failures. With `own_last`, the result of the last command is returned instead.
    pub(super) fn run(
        &mut self,
        own_last: bool,
        run: impl FnOnce(&mut [EpollCtlCmd]),
    ) -> Result<(), Errno> {
        self.slots.clear();
        self.commands.retain(|command| command.op != VOID);
        run(&mut self.commands);
        let own = if own_last { self.commands.pop() } else { None };
        for command in self.commands.drain(..) {
            if let Err(errno) = command.outcome()
                && !is_gone(&command, errno)
            {
                self.failures.push(Failure::new(&command, errno));
            }
        }
        own.map_or(Ok(()), |command| command.outcome())
    }

    /// The descriptors that need not be kept open any more.
    pub(super) fn take_held(&mut self) -> Vec<Shared> {
        std::mem::take(&mut self.held)
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { commands, failures, .. } = self;
        f.debug_struct("Queue")
            .field("commands", commands)
            .field("failures", failures)
            .finish_non_exhaustive()
    }
}

/// Whether a removal found nothing to remove.
fn is_gone(command: &EpollCtlCmd, errno: Errno) -> bool {
    command.op == CTL_DEL && errno == Errno::NOENT
}

#[cfg(test)]
mod tests {
    use busbar_uapi::epoll::CTL_MOD;
    use proptest::prelude::*;

    use super::*;

    fn command(op: i32, fd: RawFd, data: u64) -> EpollCtlCmd {
        EpollCtlCmd { op, fd, data, ..EpollCtlCmd::default() }
    }

    /// The commands that are passed on.
    fn drained(queue: &mut Queue) -> Vec<(i32, RawFd, u64)> {
        let mut seen = Vec::new();
        let last = queue.run(false, |commands| {
            seen.extend(commands.iter().map(|command| (command.op, command.fd, command.data)));
        });
        assert_eq!(last, Ok(()));
        seen
    }

    #[track_caller]
    fn becomes(queued: &[i32], expected: &[(i32, u64)]) {
        let mut queue = Queue::default();
        for (data, op) in (0..).zip(queued) {
            queue.push(command(*op, 5, data));
        }
        let expected: Vec<_> = expected.iter().map(|(op, data)| (*op, 5, *data)).collect();
        assert_eq!(drained(&mut queue), expected, "{queued:?}");
        assert!(queue.is_empty());
    }

    #[test]
    fn a_later_change_replaces_what_it_makes_void_and_nothing_else() {
        becomes(&[CTL_ADD, CTL_ADD], &[(CTL_ADD, 1)]);
        becomes(&[CTL_ADD, CTL_MOD], &[(CTL_ADD, 0), (CTL_MOD, 1)]);
        becomes(&[CTL_ADD, CTL_DEL], &[(CTL_DEL, 1)]);
        becomes(&[CTL_MOD, CTL_ADD], &[(CTL_ADD, 1)]);
        becomes(&[CTL_MOD, CTL_MOD], &[(CTL_MOD, 1)]);
        becomes(&[CTL_MOD, CTL_DEL], &[(CTL_DEL, 1)]);
        becomes(&[CTL_DEL, CTL_ADD], &[(CTL_DEL, 0), (CTL_ADD, 1)]);
        becomes(&[CTL_DEL, CTL_MOD], &[(CTL_DEL, 0), (CTL_MOD, 1)]);
        becomes(&[CTL_DEL, CTL_DEL], &[(CTL_DEL, 1)]);
        becomes(&[CTL_DEL, CTL_ADD, CTL_MOD, CTL_ADD], &[(CTL_DEL, 0), (CTL_ADD, 3)]);
        becomes(&[CTL_ADD, CTL_MOD, CTL_DEL], &[(CTL_DEL, 2)]);
    }

    #[test]
    fn failures_do_not_stop_the_queue_and_are_kept() {
        let mut queue = Queue::default();
        for fd in 0..5 {
            queue.push(command(CTL_ADD, fd, 7));
        }
        let odd_ones_fail = |commands: &mut [EpollCtlCmd]| {
            for command in commands {
                command.result = -(command.fd % 2);
            }
        };
        assert_eq!(queue.run(false, odd_ones_fail), Ok(()));
        let failed: Vec<_> = queue.failures.iter().map(|failure| failure.fd()).collect();
        assert_eq!(failed, [1, 3]);
        assert!(!queue.is_empty());
    }

    #[test]
    fn a_removal_of_what_is_gone_succeeds_but_tells_the_one_who_asked_for_it() {
        for (errno, failures) in [(Errno::NOENT, 0), (Errno::INVAL, 1)] {
            let mut queue = Queue::default();
            let fail = |commands: &mut [EpollCtlCmd]| commands[0].result = -errno.raw_os_error();
            queue.push(command(CTL_DEL, 1, 0));
            assert_eq!(queue.run(false, fail), Ok(()));
            assert_eq!(queue.failures.len(), failures, "{errno}");
            queue.push(command(CTL_DEL, 1, 0));
            assert_eq!(queue.run(true, fail), Err(errno));
            assert_eq!(queue.failures.len(), failures, "{errno}");
        }
    }

    /// A set of files under numbers, where `close` does what the kernel does.
    #[derive(Clone, Debug, Default, PartialEq)]
    struct Model {
        /// The file behind each number.
        files: HashMap<RawFd, u32>,
        /// What is in the set: number and file, and with which data.
        set: HashMap<(RawFd, u32), u64>,
    }

    impl Model {
        fn run(&mut self, command: &EpollCtlCmd) -> Result<(), Errno> {
            let key = (command.fd, *self.files.get(&command.fd).ok_or(Errno::BADF)?);
            match (command.op, self.set.contains_key(&key)) {
                (CTL_ADD, true) => return Err(Errno::EXIST),
                (CTL_ADD, false) | (CTL_MOD, true) => drop(self.set.insert(key, command.data)),
                (CTL_DEL, true) => drop(self.set.remove(&key)),
                _ => return Err(Errno::NOENT),
            }
            Ok(())
        }

        fn run_all(&mut self, commands: &mut [EpollCtlCmd]) {
            for command in commands {
                let done = self.run(command);
                command.result = done.map_or_else(|errno| -errno.raw_os_error(), |()| 0);
            }
        }

        fn reopen(&mut self, fd: RawFd, file: u32) {
            if let Some(old) = self.files.insert(fd, file) {
                self.set.remove(&(fd, old));
            }
        }
    }

    proptest! {
        /// Programs that make no mistake: they add what is not there, change and remove what is. Nobody
        /// can close a number while something is queued for it.
        #[test]
        fn the_queue_ends_where_single_calls_end(
            steps in proptest::collection::vec((0..6u8, 0..4i32), 0..200),
        ) {
            let (mut single, mut queued, mut queue) = (Model::default(), Model::default(), Queue::default());
            let mut next = 100;
            let mut reopen = |single: &mut Model, queued: &mut Model, fd| {
                next += 1;
                single.reopen(fd, next);
                queued.reopen(fd, next);
            };
            for fd in 0..4 {
                reopen(&mut single, &mut queued, fd);
            }
            for (data, (step, fd)) in (0..).zip(steps) {
                let there = single.set.contains_key(&(fd, single.files[&fd]));
                let op = match (step, there) {
                    (0, _) => {
                        queue.run(false, |commands| queued.run_all(commands)).unwrap();
                        prop_assert_eq!(&queue.failures, &vec![]);
                        prop_assert_eq!(&queued, &single);
                        continue;
                    }
                    (1, _) => {
                        queue.run(false, |commands| queued.run_all(commands)).unwrap();
                        reopen(&mut single, &mut queued, fd);
                        CTL_ADD
                    }
                    (2, true) => CTL_DEL,
                    (_, true) => CTL_MOD,
                    (_, false) => CTL_ADD,
                };
                prop_assert_eq!(single.run(&command(op, fd, data)), Ok(()));
                queue.push(command(op, fd, data));
            }
            queue.run(false, |commands| queued.run_all(commands)).unwrap();
            prop_assert_eq!(&queue.failures, &vec![]);
            prop_assert_eq!(queued, single);
        }
    }
}
