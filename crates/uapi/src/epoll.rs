//! `epoll_ctl_batch` and `epoll_pwait1` (`<linux/eventpoll.h>` with `kernel/patches`), and the calls
//! of every kernel that do the same in more steps.
//!
//! Upstream Linux does not have the two calls, and will give their numbers to others. So a program asks for
//! them by [`Syscalls::probe`]. [`epoll_ctl_batch`] and [`epoll_pwait1`] are the functions that a C program
//! would find in `<sys/epoll.h>`; the methods of [`Syscalls`] do the same without pointers.

use std::ffi::{c_int, c_long};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr;
use std::sync::OnceLock;

use rustix::event::{Timespec, epoll};
use rustix::io::{self, Errno};
use rustix::ioctl::{Getter, Opcode, ioctl, opcode};
use rustix::process::Signal;
use rustix::time::ClockId;

use crate::call::last;

pub use libc::epoll_event as EpollEvent;

/// `EPOLL_CTL_ADD`: adds an entry.
pub const CTL_ADD: i32 = libc::EPOLL_CTL_ADD;
/// `EPOLL_CTL_DEL`: removes an entry.
pub const CTL_DEL: i32 = libc::EPOLL_CTL_DEL;
/// `EPOLL_CTL_MOD`: changes an entry.
pub const CTL_MOD: i32 = libc::EPOLL_CTL_MOD;

/// There is something to read (`EPOLLIN`).
pub const IN: u32 = 0x001;
/// There is urgent data (`EPOLLPRI`).
pub const PRI: u32 = 0x002;
/// There is room to write (`EPOLLOUT`).
pub const OUT: u32 = 0x004;
/// The file has an error; always reported (`EPOLLERR`).
pub const ERR: u32 = 0x008;
/// Both directions are closed; always reported (`EPOLLHUP`).
pub const HUP: u32 = 0x010;
/// The peer has stopped sending (`EPOLLRDHUP`).
pub const RDHUP: u32 = 0x2000;
/// Wake at least one of the sets that hold the file, not all (`EPOLLEXCLUSIVE`).
pub const EXCLUSIVE: u32 = 1 << 28;
/// Report once, then nothing until a change (`EPOLLONESHOT`).
pub const ONESHOT: u32 = 1 << 30;
/// Edge-triggered: report changes of state once (`EPOLLET`).
pub const ET: u32 = 1 << 31;

/// A command that fails does not stop the others (`EPOLL_CTL_BATCH_CONTINUE`).
pub const BATCH_CONTINUE: u32 = 1;
/// The timeout is a point in time of the clock (`EPOLL_PWAIT1_ABSTIME`).
pub const PWAIT1_ABSTIME: u32 = 1;

/// Maximum number of commands of one `epoll_ctl_batch`: `INT_MAX / sizeof(struct epoll_ctl_cmd)`.
pub const BATCH_MAX: usize = i32::MAX as usize / size_of::<EpollCtlCmd>();
/// Maximum number of events of one wait: `INT_MAX / sizeof(struct epoll_event)`.
pub const EVENTS_MAX: usize = i32::MAX as usize / size_of::<EpollEvent>();

/// `struct epoll_ctl_cmd`: what one `epoll_ctl` would do.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpollCtlCmd {
    /// Reserved, 0.
    pub flags: i32,
    /// [`CTL_ADD`], [`CTL_MOD`] or [`CTL_DEL`].
    pub op: i32,
    /// The descriptor.
    pub fd: RawFd,
    /// What to wait for.
    pub events: u32,
    /// Returned with each event.
    pub data: u64,
    /// Returned: 0 or a negative errno if the command was reached; `-EINTR` for the command at which a batch
    /// was interrupted. Unchanged if the kernel cannot write it.
    pub result: i32,
    /// 0.
    pub reserved: u32,
}

impl EpollCtlCmd {
    /// [`result`](Self::result) as a `Result`.
    pub fn outcome(&self) -> io::Result<()> {
        match self.result {
            error @ -4095..0 => Err(Errno::from_raw_os_error(-error)),
            // The kernel returns no such value.
            ..-4095 => Err(Errno::INVAL),
            0.. => Ok(()),
        }
    }
}

/// `struct epoll_wait_params`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpollWaitParams {
    /// `CLOCK_MONOTONIC`, `CLOCK_REALTIME` or `CLOCK_BOOTTIME`.
    pub clockid: i32,
    /// 0.
    pub reserved: u32,
    /// Address of a `struct __kernel_timespec`, or 0 for no limit.
    pub timeout: u64,
    /// Address of the kernel's `sigset_t`, or 0.
    pub sigmask: u64,
    /// Bytes of the kernel's `sigset_t`, 8.
    pub sigsetsize: u64,
}

/// `struct epoll_syscalls`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct EpollSyscalls {
    magic: u64,
    ctl_batch: u32,
    pwait1: u32,
}

/// "buswait2". The first one had no size of its parameters and no flags.
const MAGIC: u64 = 0x3274_6961_7773_7562;

/// `EPIOCGSYSCALLS`.
const GET_SYSCALLS: Opcode = opcode::read::<EpollSyscalls>(0x8a, 0xb0);

/// The numbers of the two calls in the kernel that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syscalls {
    ctl_batch: u32,
    pwait1: u32,
}

impl Syscalls {
    /// Numbers for which every call fails with `ENOSYS`, for tests.
    pub const DENIED: Self = Self { ctl_batch: 0xffff, pwait1: 0xffff };

    /// Asks the kernel through `epfd`, an epoll descriptor (`EPIOCGSYSCALLS`); `None` if it does
    /// not have the calls.
    pub fn probe(epfd: impl AsFd) -> io::Result<Option<Self>> {
        // SAFETY: the opcode is that of a call that fills a `struct epoll_syscalls`. Another call
        // of that number could not write more than its size either, and any bytes are one.
        match unsafe { ioctl(epfd, Getter::<GET_SYSCALLS, EpollSyscalls>::new()) } {
            Ok(answer) => Ok(Self::known(answer)),
            Err(Errno::NOTTY | Errno::INVAL) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn known(answer: EpollSyscalls) -> Option<Self> {
        let EpollSyscalls { magic, ctl_batch, pwait1 } = answer;
        (magic == MAGIC).then_some(Self { ctl_batch, pwait1 })
    }

    /// Asks the kernel once per process.
    fn of_kernel() -> io::Result<Option<Self>> {
        static ANSWER: OnceLock<Option<Syscalls>> = OnceLock::new();
        if let Some(answer) = ANSWER.get() {
            return Ok(*answer);
        }
        let answer = Self::probe(epoll::create(epoll::CreateFlags::CLOEXEC)?)?;
        Ok(*ANSWER.get_or_init(|| answer))
    }

    /// `epoll_ctl_batch`: does `commands` in order until one fails, or all of them with [`BATCH_CONTINUE`] in
    /// `flags`. Returns how many succeeded, or with that flag, how many were done.
    ///
    /// If that is not all, `result` of the next command is the reason: its errno, or `-EINTR` if the thread
    /// had a signal or other work; then do the rest by another call.
    /// At most [`BATCH_MAX`] commands, at least one.
    pub fn ctl_batch(
        &self,
        epfd: impl AsFd,
        flags: u32,
        commands: &mut [EpollCtlCmd],
    ) -> io::Result<usize> {
        let (count, flags) = (length(commands)?, flags.cast_signed());
        // SAFETY: the kernel said that this is the call, which reads and writes `count` commands.
        done(unsafe { self.raw_ctl_batch(raw(&epfd), flags, count, commands.as_mut_ptr()) })
    }

    /// `epoll_pwait1`: waits as [`pwait`] does, until `timeout` on `clock` if there is one;
    /// returns how many `events` there are.
    ///
    /// `timeout` is a length of time, or with [`PWAIT1_ABSTIME`] in `flags` a point in time. `clock`
    /// is `CLOCK_MONOTONIC`, `CLOCK_REALTIME` or `CLOCK_BOOTTIME`.
    pub fn pwait1(
        &self,
        epfd: impl AsFd,
        flags: u32,
        events: &mut [EpollEvent],
        clock: ClockId,
        timeout: Option<&Timespec>,
        mask: Option<&SignalSet>,
    ) -> io::Result<usize> {
        let params = EpollWaitParams {
            clockid: clock as i32,
            reserved: 0,
            timeout: address(timeout),
            sigmask: address(mask),
            sigsetsize: size_of::<SignalSet>() as u64,
        };
        let (first, count, flags) = (events.as_mut_ptr(), length(events)?, flags.cast_signed());
        let (params, size) = (&raw const params, size_of::<EpollWaitParams>());
        // SAFETY: the kernel said that this is the call. It fills at most `count` events, and
        // `params` has addresses of references of the types that the call reads, or 0.
        done(unsafe { self.raw_pwait1(raw(&epfd), flags, first, count, params, size) })
    }

    /// # Safety
    ///
    /// `cmds` must be `ncmds` commands, or an address that the kernel refuses.
    unsafe fn raw_ctl_batch(
        &self,
        epfd: c_int,
        flags: c_int,
        ncmds: c_int,
        cmds: *mut EpollCtlCmd,
    ) -> c_long {
        // SAFETY: guaranteed by the caller.
        unsafe { libc::syscall(number(self.ctl_batch), epfd, flags, ncmds, cmds) }
    }

    /// # Safety
    ///
    /// `events` must have room for `maxevents` events, and the `size` bytes at `params` and the
    /// addresses in them must be valid, or such that the kernel refuses them.
    unsafe fn raw_pwait1(
        &self,
        epfd: c_int,
        flags: c_int,
        events: *mut EpollEvent,
        maxevents: c_int,
        params: *const EpollWaitParams,
        size: usize,
    ) -> c_long {
        let call = number(self.pwait1);
        // SAFETY: guaranteed by the caller.
        unsafe { libc::syscall(call, epfd, flags, events, maxevents, params, size) }
    }
}

/// The number of a system call for `syscall()`; one that cannot be is -1, which is `ENOSYS`.
#[allow(clippy::unnecessary_fallible_conversions, reason = "c_long has 32 bits on 32-bit targets")]
fn number(call: u32) -> c_long {
    c_long::try_from(call).unwrap_or(-1)
}

/// `epoll_ctl_batch` as in C: how many commands are done, or -1 and `errno`.
///
/// `ENOSYS` if the kernel does not have the call.
///
/// # Safety
///
/// `cmds` must be `ncmds` commands, or an address that the kernel refuses.
pub unsafe extern "C" fn epoll_ctl_batch(
    epfd: c_int,
    flags: c_int,
    ncmds: c_int,
    cmds: *mut EpollCtlCmd,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    as_in_c(|calls| unsafe { calls.raw_ctl_batch(epfd, flags, ncmds, cmds) })
}

/// `epoll_pwait1` as in C: how many events there are, or -1 and `errno`.
///
/// `ENOSYS` if the kernel does not have the call.
///
/// # Safety
///
/// `events` must have room for `maxevents` events, and the `size` bytes at `params` and the
/// addresses in them must be valid, or such that the kernel refuses them.
pub unsafe extern "C" fn epoll_pwait1(
    epfd: c_int,
    flags: c_int,
    events: *mut EpollEvent,
    maxevents: c_int,
    params: *const EpollWaitParams,
    size: usize,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    as_in_c(|calls| unsafe { calls.raw_pwait1(epfd, flags, events, maxevents, params, size) })
}

fn as_in_c(call: impl Fn(&Syscalls) -> c_long) -> c_int {
    let failed = |errno: Errno| {
        // SAFETY: the address is that of this thread's `errno`.
        unsafe { *libc::__errno_location() = errno.raw_os_error() };
        -1
    };
    match Syscalls::of_kernel() {
        Ok(Some(calls)) => c_int::try_from(call(&calls)).unwrap_or(-1),
        Ok(None) => failed(Errno::NOSYS),
        Err(errno) => failed(errno),
    }
}

/// The kernel's `sigset_t`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SignalSet(u64);

impl SignalSet {
    /// No signal.
    pub const EMPTY: Self = Self(0);
    /// Every signal. The kernel leaves out `SIGKILL` and `SIGSTOP`.
    pub const ALL: Self = Self(u64::MAX);

    /// Signals of the C library itself: blocking them stops `setuid` and the end of threads.
    const PRIVATE: u64 = 0b11 << 31;

    /// The set with this signal.
    #[must_use]
    pub fn with(self, signal: Signal) -> Self {
        Self(self.0 | bit(signal))
    }

    /// The set without this signal.
    #[must_use]
    pub fn without(self, signal: Signal) -> Self {
        Self(self.0 & !bit(signal))
    }

    /// Whether a signal is in it.
    #[must_use]
    pub fn contains(self, signal: Signal) -> bool {
        self.0 & bit(signal) != 0
    }

    /// The signals that the calling thread blocks.
    pub fn of_thread() -> io::Result<Self> {
        change_mask(libc::SIG_BLOCK, None)
    }

    /// Makes the calling thread block these signals and no others; returns those that it blocked before.
    pub fn block(self) -> io::Result<Self> {
        change_mask(libc::SIG_SETMASK, Some(&Self(self.0 & !Self::PRIVATE)))
    }
}

impl From<&libc::sigset_t> for SignalSet {
    fn from(set: &libc::sigset_t) -> Self {
        // SAFETY: `set` is a reference; a number that is no signal is answered with -1.
        let is_in = |signal: &c_int| unsafe { libc::sigismember(set, *signal) } == 1;
        Self((1..=64).filter(is_in).fold(0, |bits, signal| bits | 1 << (signal - 1)))
    }
}

fn bit(signal: Signal) -> u64 {
    1 << ((signal.as_raw() - 1) & 63)
}

fn change_mask(how: c_int, set: Option<&SignalSet>) -> io::Result<SignalSet> {
    let mut old = SignalSet::EMPTY;
    let (new, old_address) = (pointer(set), &raw mut old);
    // SAFETY: `new` is null or a reference to what the call reads, `old` what it fills.
    done(unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, how, new, old_address, size_of::<SignalSet>())
    })?;
    Ok(old)
}

/// `epoll_ctl`. `fd` is a number, since it may have been closed.
#[inline]
pub fn ctl(epfd: impl AsFd, op: i32, fd: RawFd, events: u32, data: u64) -> io::Result<()> {
    let mut event = EpollEvent { events, u64: data };
    // SAFETY: `event` is one, and the kernel refuses a descriptor that is not open.
    done(unsafe { libc::epoll_ctl(raw(&epfd), op, fd, &raw mut event) }.into()).map(drop)
}

/// `epoll_pwait`: waits for `millis`, or for ever if that is negative; returns how many `events`
/// there are. Meanwhile the thread blocks the signals of `mask`.
#[inline]
pub fn pwait(
    epfd: impl AsFd,
    events: &mut [EpollEvent],
    millis: i32,
    mask: Option<&SignalSet>,
) -> io::Result<usize> {
    let (first, count, epfd) = (events.as_mut_ptr(), length(events)?, raw(&epfd));
    let Some(mask) = mask else {
        // SAFETY: the call fills at most `count` events.
        return done(unsafe { libc::epoll_wait(epfd, first, count, millis) }.into());
    };
    let (call, mask, size) = (libc::SYS_epoll_pwait, ptr::from_ref(mask), size_of::<SignalSet>());
    // SAFETY: the call fills at most `count` events, and reads `mask`.
    done(unsafe { libc::syscall(call, epfd, first, count, millis, mask, size) })
}

/// `epoll_pwait2`: as [`pwait`], with a timeout in nanoseconds or none.
#[inline]
pub fn pwait2(
    epfd: impl AsFd,
    events: &mut [EpollEvent],
    timeout: Option<&Timespec>,
    mask: Option<&SignalSet>,
) -> io::Result<usize> {
    let (first, count, mask) = (events.as_mut_ptr(), length(events)?, pointer(mask));
    let (call, epfd, size) = (libc::SYS_epoll_pwait2, raw(&epfd), size_of::<SignalSet>());
    // SAFETY: the call fills at most `count` events, and reads `timeout` and `mask` unless they are
    // null. rustix's `Timespec` is `struct __kernel_timespec`.
    done(unsafe { libc::syscall(call, epfd, first, count, pointer(timeout), mask, size) })
}

/// `ppoll`: waits until one of `files` is readable, and returns which ones are. `mask` is as for [`pwait`].
pub fn wait_readable<const N: usize>(
    files: [BorrowedFd<'_>; N],
    mask: Option<&SignalSet>,
) -> io::Result<[bool; N]> {
    let mut fds =
        files.map(|file| libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 });
    let (first, count, mask) = (fds.as_mut_ptr(), fds.len(), pointer(mask));
    let (call, never, size) = (libc::SYS_ppoll, ptr::null::<Timespec>(), size_of::<SignalSet>());
    // SAFETY: `fds` are `count` of what the call reads and fills; it reads `mask` unless it is null.
    done(unsafe { libc::syscall(call, first, count, never, mask, size) })?;
    Ok(fds.map(|fd| fd.revents != 0))
}

fn raw(epfd: &impl AsFd) -> RawFd {
    epfd.as_fd().as_raw_fd()
}

fn length<T>(items: &[T]) -> io::Result<c_int> {
    c_int::try_from(items.len()).map_err(|_| Errno::INVAL)
}

fn pointer<T>(value: Option<&T>) -> *const T {
    value.map_or(ptr::null(), ptr::from_ref)
}

fn address<T>(value: Option<&T>) -> u64 {
    pointer(value).expose_provenance() as u64
}

/// The result of a call of the C library: a count, or -1 and `errno`.
#[inline]
fn done(returned: c_long) -> io::Result<usize> {
    usize::try_from(returned).map_err(|_| last())
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;
    use std::os::fd::OwnedFd;

    use super::*;

    fn set() -> OwnedFd {
        epoll::create(epoll::CreateFlags::CLOEXEC).unwrap()
    }

    #[test]
    fn layouts_are_those_of_the_header() {
        assert_eq!((size_of::<EpollCtlCmd>(), align_of::<EpollCtlCmd>()), (32, 8));
        assert_eq!(offset_of!(EpollCtlCmd, op), 4);
        assert_eq!(offset_of!(EpollCtlCmd, fd), 8);
        assert_eq!(offset_of!(EpollCtlCmd, events), 12);
        assert_eq!(offset_of!(EpollCtlCmd, data), 16);
        assert_eq!(offset_of!(EpollCtlCmd, result), 24);
        assert_eq!(offset_of!(EpollCtlCmd, reserved), 28);
        assert_eq!((size_of::<EpollWaitParams>(), align_of::<EpollWaitParams>()), (32, 8));
        assert_eq!(offset_of!(EpollWaitParams, reserved), 4);
        assert_eq!(offset_of!(EpollWaitParams, timeout), 8);
        assert_eq!(offset_of!(EpollWaitParams, sigmask), 16);
        assert_eq!(offset_of!(EpollWaitParams, sigsetsize), 24);
        assert_eq!((size_of::<EpollSyscalls>(), align_of::<EpollSyscalls>()), (16, 8));
        assert_eq!(offset_of!(EpollSyscalls, ctl_batch), 8);
        assert_eq!(offset_of!(EpollSyscalls, pwait1), 12);
    }

    #[test]
    fn numbers_are_those_of_the_header() {
        assert_eq!(GET_SYSCALLS, 0x8010_8ab0);
        assert_eq!(&MAGIC.to_le_bytes(), b"buswait2");
        let flags = [libc::EPOLLIN, libc::EPOLLPRI, libc::EPOLLOUT, libc::EPOLLERR, libc::EPOLLHUP];
        assert_eq!(flags.map(i32::cast_unsigned), [IN, PRI, OUT, ERR, HUP]);
        let flags = [libc::EPOLLRDHUP, libc::EPOLLEXCLUSIVE, libc::EPOLLONESHOT, libc::EPOLLET];
        assert_eq!(flags.map(i32::cast_unsigned), [RDHUP, EXCLUSIVE, ONESHOT, ET]);
    }

    #[test]
    fn outcomes_are_there_for_every_result() {
        let outcome = |result| EpollCtlCmd { result, ..Default::default() }.outcome();
        assert_eq!(outcome(i32::MIN), Err(Errno::INVAL));
        assert_eq!(outcome(-4096), Err(Errno::INVAL));
        assert_eq!(outcome(-4095), Err(Errno::from_raw_os_error(4095)));
        assert_eq!(outcome(-1), Err(Errno::PERM));
        assert_eq!(outcome(0), Ok(()));
        assert_eq!(outcome(1), Ok(()));
    }

    #[test]
    fn an_answer_of_another_kernel_is_none() {
        let answer = EpollSyscalls { magic: MAGIC, ctl_batch: 1040, pwait1: 1041 };
        assert_eq!(Syscalls::known(answer), Some(Syscalls { ctl_batch: 1040, pwait1: 1041 }));
        assert_eq!(Syscalls::known(EpollSyscalls { magic: MAGIC + 1, ..answer }), None);
        assert_eq!(Syscalls::known(EpollSyscalls { magic: 0, ..answer }), None);
    }

    #[test]
    fn a_file_that_is_no_set_has_no_calls() {
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(Syscalls::probe(&null), Ok(None));
    }

    #[test]
    fn calls_that_are_denied_say_so() {
        let (set, calls) = (set(), Syscalls::DENIED);
        assert_eq!(calls.ctl_batch(&set, 0, &mut [EpollCtlCmd::default()]), Err(Errno::NOSYS));
        let mut events = [EpollEvent { events: 0, u64: 0 }];
        let waited = calls.pwait1(&set, 0, &mut events, ClockId::Monotonic, None, None);
        assert_eq!(waited, Err(Errno::NOSYS));
    }

    #[test]
    fn the_pair_as_in_c_is_there_exactly_if_the_kernel_has_it() {
        let set = set();
        let there = Syscalls::probe(&set).unwrap().is_some();
        let expected = if there { Errno::INVAL } else { Errno::NOSYS };
        // SAFETY: the kernel refuses to read no commands.
        let returned = unsafe { epoll_ctl_batch(set.as_raw_fd(), 0, 0, ptr::null_mut()) };
        assert_eq!(done(returned.into()), Err(expected));
        let (params, size) = (EpollWaitParams::default(), size_of::<EpollWaitParams>());
        // SAFETY: the kernel refuses to return no events.
        let returned = unsafe {
            epoll_pwait1(set.as_raw_fd(), 0, ptr::null_mut(), 0, &raw const params, size)
        };
        assert_eq!(done(returned.into()), Err(expected));
    }

    #[test]
    #[ignore = "needs the lab"]
    fn the_lab_kernel_has_the_calls() {
        let (set, other) = (set(), set());
        let calls = Syscalls::probe(&set).unwrap().unwrap();
        let add =
            EpollCtlCmd { op: CTL_ADD, fd: other.as_raw_fd(), events: IN, ..Default::default() };
        let mut commands =
            [add, EpollCtlCmd { result: 7, ..add }, EpollCtlCmd { result: 7, ..add }];
        assert_eq!(calls.ctl_batch(&set, 0, &mut commands), Ok(1));
        let results = commands.map(|command| command.result);
        assert_eq!(results, [0, -libc::EEXIST, 7]);
        assert_eq!(commands[0].outcome(), Ok(()));
        assert_eq!(commands[1].outcome(), Err(Errno::EXIST));
        commands[1].op = CTL_DEL;
        assert_eq!(calls.ctl_batch(&set, BATCH_CONTINUE, &mut commands), Ok(3));
        let results = commands.map(|command| command.result);
        assert_eq!(results, [-libc::EEXIST, 0, 0]);
        assert_eq!(calls.ctl_batch(&set, 2, &mut commands), Err(Errno::INVAL));
        let mut events = [EpollEvent { events: 0, u64: 0 }];
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        for clock in [ClockId::Monotonic, ClockId::Realtime, ClockId::Boottime] {
            for flags in [0, PWAIT1_ABSTIME] {
                let waited = calls.pwait1(&set, flags, &mut events, clock, Some(&zero), None);
                assert_eq!(waited, Ok(0), "{clock:?} {flags}");
            }
        }
        let wrong = [(2, ClockId::Monotonic), (0, ClockId::ProcessCPUTime)];
        for (flags, clock) in wrong {
            let waited = calls.pwait1(&set, flags, &mut events, clock, Some(&zero), None);
            assert_eq!(waited, Err(Errno::INVAL), "{clock:?} {flags}");
        }
    }

    #[test]
    fn the_calls_of_every_kernel_work() {
        let (set, inner) = (set(), set());
        let event = rustix::event::eventfd(1, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        ctl(&inner, CTL_ADD, event.as_raw_fd(), IN, 3).unwrap();
        ctl(&set, CTL_ADD, inner.as_raw_fd(), IN, 7).unwrap();
        assert_eq!(ctl(&set, CTL_ADD, inner.as_raw_fd(), IN, 7), Err(Errno::EXIST));
        let mut events = [EpollEvent { events: 0, u64: 0 }; 2];
        assert_eq!(pwait(&set, &mut events, 0, None), Ok(1));
        let key = events[0].u64;
        assert_eq!(key, 7);
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let waited = pwait2(&inner, &mut events, Some(&zero), Some(&SignalSet::EMPTY));
        assert!(matches!(waited, Ok(1) | Err(Errno::NOSYS)), "{waited:?}");
        let empty = self::set();
        let readable = wait_readable([empty.as_fd(), set.as_fd()], None);
        assert_eq!(readable, Ok([false, true]));
        assert_eq!(pwait(&set, &mut [], 0, None), Err(Errno::INVAL));
    }

    #[test]
    fn signal_sets_are_those_of_the_thread() {
        let set = SignalSet::EMPTY.with(Signal::USR1).with(Signal::TERM);
        let before = set.block().unwrap();
        assert_eq!(SignalSet::of_thread(), Ok(set));
        let mut c = std::mem::MaybeUninit::uninit();
        // SAFETY: the call fills the set.
        let c = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), c.as_mut_ptr());
            c.assume_init()
        };
        assert_eq!(SignalSet::from(&c), set);
        assert!(set.contains(Signal::TERM) && !set.without(Signal::TERM).contains(Signal::TERM));
        assert_eq!(before.block(), Ok(set));
        assert_eq!(SignalSet::of_thread(), Ok(before));
    }
}
