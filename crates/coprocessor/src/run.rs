//! Runs a machine on a device: one thread, one `poll`.

use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use busbar::{Error, Result, later};
use busbar_uapi::vcoproc::{EVENT_START, EVENT_STOP, Event};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::machine::{Machine, Notice, Notify};
use crate::remoteproc::{Remoteproc, State};
use crate::stop::{Request, Stop};

/// The device that a machine runs on.
pub(crate) trait Device: AsFd {
    /// The next event, if there is one. The descriptor is readable while there is.
    fn event(&self) -> Result<Option<Event>>;
    /// Kicks Linux.
    fn kick(&self, mask: u32) -> Result<()>;
    /// Acknowledges a stop.
    fn stopped(&self) -> Result<()>;
    /// Reports a crash.
    fn crash(&self) -> Result<()>;
}

/// How a run begins and ends.
#[derive(Debug)]
pub struct Options<'a> {
    /// Requests for the end. Without it the run goes on until it fails.
    pub stop: Option<&'a Stop>,
    /// Linux's side, to be started if it is offline, and stopped at the end if the run has
    /// started it. Without one, and if another process has started it, the end of the process is a
    /// crash to Linux, which then waits for the next process.
    pub remoteproc: Option<&'a Remoteproc>,
    /// How long Linux may take to free the buffers in which names are withdrawn. Then the end goes on without that.
    pub withdraw_timeout: Duration,
    /// How long the end waits for a start of the remoteproc that is still under way, and then for the stop, each. After
    /// that it is an error of the run.
    pub remoteproc_timeout: Duration,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            stop: None,
            remoteproc: None,
            withdraw_timeout: Duration::from_secs(2),
            // On a slow machine that has much else to do, either takes seconds.
            remoteproc_timeout: Duration::from_secs(30),
        }
    }
}

/// Progress of the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    /// Names are being withdrawn, until then at the latest.
    Withdrawing(Instant),
    /// A start is awaited, which a stop follows, until then at the latest.
    Starting(Instant),
    /// The last work is awaited, until then at the latest: the stop, or a start that no stop follows.
    Finishing(Instant),
    Ended,
}

/// Hangs up when it is dropped, also if a child of a fork still has the descriptor.
struct HangsUp(UnixStream);

impl Drop for HangsUp {
    fn drop(&mut self) {
        // It fails if nobody waits any more.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// Work on Linux's side: it may wait for the process, which therefore cannot do it itself.
struct Work {
    is_start: bool,
    done: UnixStream,
    thread: JoinHandle<Result<()>>,
}

impl Work {
    fn start(remoteproc: &Remoteproc) -> Result<Self> {
        let remoteproc = remoteproc.clone();
        Self::new(true, move || remoteproc.start())
    }

    fn stop(remoteproc: &Remoteproc) -> Result<Self> {
        let remoteproc = remoteproc.clone();
        Self::new(false, move || stop(&remoteproc))
    }

    fn new(is_start: bool, work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<Self> {
        let spawn = || {
            let (done, writer) = UnixStream::pair()?;
            let body = move || {
                let _at_the_end = HangsUp(writer);
                work()
            };
            let thread = std::thread::Builder::new().spawn(body)?;
            Ok(Self { is_start, done, thread })
        };
        spawn().map_err(|error: std::io::Error| Error::new("start", "a thread", error))
    }

    fn join(self) -> Result<()> {
        self.thread.join().unwrap_or_else(|_| Err(Error::new("finish", "a thread", Errno::IO)))
    }
}

/// Runs `machine` on `device` until an end is asked for.
pub(crate) fn run(
    device: &impl Device,
    machine: &mut Machine<'_>,
    options: &Options<'_>,
    notify: Notify<'_>,
) -> Result<()> {
    let mut run =
        Run { device, machine, options, work: None, started: false, phase: Phase::Serving };
    run.begin()?;
    while run.phase != Phase::Ended {
        run.turn(notify)?;
    }
    Ok(())
}

struct Run<'a, 'm, D> {
    device: &'a D,
    machine: &'a mut Machine<'m>,
    options: &'a Options<'a>,
    work: Option<Work>,
    /// This run has started the remoteproc.
    started: bool,
    phase: Phase,
}

impl<D: Device> Run<'_, '_, D> {
    fn begin(&mut self) -> Result<()> {
        let Some(remoteproc) = self.options.remoteproc else { return Ok(()) };
        match remoteproc.state()? {
            State::Offline => {
                self.started = true;
                self.work = Some(Work::start(remoteproc)?);
            }
            State::Crashed if !remoteproc.recovers()? => {
                let crashed = std::io::Error::other("it has crashed and recovery is disabled");
                let recovery = remoteproc.path().join("recovery");
                return Err(Error::new("use", remoteproc.path().display().to_string(), crashed)
                    .help(format!("echo recover > {}", recovery.display())));
            }
            _ => {}
        }
        Ok(())
    }

    fn turn(&mut self, notify: Notify<'_>) -> Result<()> {
        let begun = Instant::now();
        let turn = self.machine.turn(begun, notify);
        if turn.kick != 0 {
            self.device.kick(turn.kick)?;
        }
        if let Some(reason) = turn.crash {
            self.machine.halt();
            self.device.crash()?;
            notify(Notice::Crashed { reason: &reason });
        }
        self.advance()?;
        if self.phase == Phase::Ended {
            return Ok(());
        }
        let deadline = if turn.busy { Some(begun) } else { earlier(turn.deadline, self.limit()) };
        self.wait(deadline, notify)
    }

    /// Takes the next step of the end, if nothing delays it any more.
    fn advance(&mut self) -> Result<()> {
        // A service or `notify` may have taken long.
        let is_over = self.limit().is_some_and(|limit| Instant::now() >= limit);
        match (self.phase, &self.work) {
            (Phase::Withdrawing(_), _) if is_over || self.machine.is_flushed() => self.stop(),
            (Phase::Starting(_) | Phase::Finishing(_), Some(work))
                if is_over && !work.thread.is_finished() =>
            {
                Err(self.too_long(work.is_start))
            }
            _ => Ok(()),
        }
    }

    fn too_long(&self, is_start: bool) -> Error {
        let error = |what: &str| Error::new("finish", what, Errno::TIMEDOUT);
        let Some(remoteproc) = self.options.remoteproc.filter(|_| is_start) else {
            return error("the stop of the remoteproc")
                .help("Linux goes on with it, and treats the end of the process as a crash");
        };
        let state = remoteproc.path().join("state");
        error("the start of the remoteproc").help(format!(
            "Linux goes on with it; if it ends well: echo stop > {}",
            state.display()
        ))
    }

    /// Stops the remoteproc if this run has started it, once the start is done.
    fn stop(&mut self) -> Result<()> {
        let limit = later(Instant::now(), self.options.remoteproc_timeout);
        self.phase = match self.options.remoteproc.filter(|_| self.started) {
            None => Phase::Ended,
            Some(_) if self.work.is_some() => Phase::Starting(limit),
            Some(remoteproc) => {
                self.work = Some(Work::stop(remoteproc)?);
                Phase::Finishing(limit)
            }
        };
        Ok(())
    }

    fn limit(&self) -> Option<Instant> {
        match self.phase {
            Phase::Withdrawing(limit) | Phase::Starting(limit) | Phase::Finishing(limit) => {
                Some(limit)
            }
            Phase::Serving | Phase::Ended => None,
        }
    }

    /// Waits until something happens or the deadline has passed, and handles it.
    fn wait(&mut self, deadline: Option<Instant>, notify: Notify<'_>) -> Result<()> {
        let sources = [
            Some(self.device.as_fd()),
            self.options.stop.map(AsFd::as_fd),
            self.work.as_ref().map(|work| work.done.as_fd()),
        ];
        let [device, stop, work] = wait_for(sources, deadline)?;
        // First of all: after Linux has taken the core away, the memory must not be touched.
        if device && let Some(event) = self.device.event()? {
            self.take_event(event, notify)?;
        }
        if work && let Some(work) = self.work.take() {
            work.join()?;
            match self.phase {
                Phase::Starting(_) => self.stop()?,
                Phase::Finishing(_) => self.phase = Phase::Ended,
                _ => {}
            }
        }
        if stop && let Some(request) = self.options.stop.and_then(Stop::take) {
            self.ask_to_end(request)?;
        }
        Ok(())
    }

    fn take_event(&mut self, event: Event, notify: Notify<'_>) -> Result<()> {
        if event.events & EVENT_STOP != 0 {
            self.machine.halt();
            self.device.stopped()?;
            notify(Notice::Stopped);
        }
        // Before an end at once it stays halted.
        if event.events & EVENT_START != 0 && !matches!(self.phase, Phase::Finishing(_)) {
            self.machine.start();
            notify(Notice::Started { boot: event.boot });
        }
        Ok(())
    }

    fn ask_to_end(&mut self, request: Request) -> Result<()> {
        match self.phase {
            Phase::Serving if request == Request::InOrder => {
                self.phase =
                    Phase::Withdrawing(later(Instant::now(), self.options.withdraw_timeout));
                self.machine.close()?;
            }
            Phase::Serving | Phase::Withdrawing(_) if self.work.is_none() => {
                self.phase = Phase::Ended;
            }
            // What is under way on Linux's side would start or stop the core of whoever opens the device next.
            Phase::Serving | Phase::Withdrawing(_) => {
                self.machine.halt();
                self.phase =
                    Phase::Finishing(later(Instant::now(), self.options.remoteproc_timeout));
            }
            Phase::Starting(limit) => self.phase = Phase::Finishing(limit),
            Phase::Finishing(_) | Phase::Ended => {}
        }
        Ok(())
    }
}

/// Without a look at the state before: while Linux recovers it from a crash, that is `offline` for a moment.
fn stop(remoteproc: &Remoteproc) -> Result<()> {
    unless_offline(remoteproc.stop(), || remoteproc.state())
}

/// Another process may have stopped it already, which Linux says by `EINVAL`.
fn unless_offline(stopped: Result<()>, state: impl FnOnce() -> Result<State>) -> Result<()> {
    match stopped {
        Err(error) if error.errno() == Some(Errno::INVAL) && state()? == State::Offline => Ok(()),
        other => other,
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    [one, other].into_iter().flatten().min()
}

/// Returns which of `sources` are ready; none of them after the deadline.
fn wait_for<const N: usize>(
    sources: [Option<BorrowedFd<'_>>; N],
    deadline: Option<Instant>,
) -> Result<[bool; N]> {
    let mut polled: Vec<_> =
        sources.iter().flatten().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let timeout = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(Error::new("wait for", "the coprocessor", errno)),
    }
    let mut ready = polled.iter().map(|fd| !fd.revents().is_empty());
    Ok(sources.map(|source| source.is_some() && ready.next().unwrap_or(false)))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::{ErrorKind, Read as _, Write as _};
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::OpenOptionsExt as _;
    use std::path::{Path, PathBuf};
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use busbar_uapi::vcoproc::EVENT_KICK;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
    use rustix::io::ioctl_fionread;

    use super::State as RemoteprocState;
    use super::*;
    use crate::machine::Statistics;
    use crate::mock::Linux;
    use crate::service::{Crash, Echo, Services};
    use crate::stop::StopHandle;
    use crate::table::Image;

    const US: u32 = 0x400;
    const LINUX: u32 = 0x777;
    /// So long that no test reaches it on any machine.
    const LONG: Duration = Duration::from_secs(60);

    /// `/dev/vcoprocN` without the kernel.
    struct Fake {
        state: Mutex<State>,
        /// Readable while there are events.
        to_core: OwnedFd,
        /// Readable once the core has kicked, acknowledged a stop or crashed.
        to_linux: OwnedFd,
    }

    #[derive(Default)]
    struct State {
        event: Event,
        gone: bool,
        stopped: u32,
        crashed: u32,
        kicks: u32,
    }

    impl Fake {
        fn new() -> Self {
            let fd = || eventfd(0, EventfdFlags::NONBLOCK).unwrap();
            Self { state: Mutex::default(), to_core: fd(), to_linux: fd() }
        }

        fn signal(fd: &OwnedFd) {
            rustix::io::write(fd, &1u64.to_ne_bytes()).unwrap();
        }

        fn post(&self, events: u32) {
            let mut state = self.state.lock().unwrap();
            state.event.events |= events;
            state.event.boot += u64::from(events & EVENT_START != 0);
            drop(state);
            Self::signal(&self.to_core);
        }

        fn kick_core(&self, vrings: u32) {
            if vrings != 0 {
                self.post(EVENT_KICK);
            }
        }

        fn hang_up(&self) {
            self.state.lock().unwrap().gone = true;
            Self::signal(&self.to_core);
        }

        /// Linux sleeps until the core has done something; true if it did in time.
        fn linux_waits(&self) -> bool {
            let until = Instant::now() + Duration::from_secs(10);
            let [woken] = wait_for([Some(self.to_linux.as_fd())], Some(until)).unwrap();
            let _ = rustix::io::read(&self.to_linux, &mut [0; 8]);
            woken
        }

        fn tell(&self, change: impl FnOnce(&mut State)) {
            change(&mut self.state.lock().unwrap());
            Self::signal(&self.to_linux);
        }

        /// Waits until `seen` holds; Linux is woken by whatever the core does.
        fn wait_until(&self, seen: impl Fn(&State) -> bool) {
            while !seen(&self.state.lock().unwrap()) {
                assert!(self.linux_waits(), "the core does nothing");
            }
        }
    }

    impl AsFd for Fake {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.to_core.as_fd()
        }
    }

    impl Device for Fake {
        fn event(&self) -> Result<Option<Event>> {
            let mut state = self.state.lock().unwrap();
            if state.gone {
                return Err(Error::new("read from", "the fake", Errno::NODEV));
            }
            let _ = rustix::io::read(&self.to_core, &mut [0; 8]);
            let events = std::mem::take(&mut state.event.events);
            Ok((events != 0).then_some(Event { events, ..state.event }))
        }

        fn kick(&self, mask: u32) -> Result<()> {
            assert_ne!(mask, 0);
            self.tell(|state| state.kicks += 1);
            Ok(())
        }

        fn stopped(&self) -> Result<()> {
            self.tell(|state| state.stopped += 1);
            Ok(())
        }

        fn crash(&self) -> Result<()> {
            self.tell(|state| state.crashed += 1);
            Ok(())
        }
    }

    /// Options whose limits no test reaches.
    fn patient(remoteproc: Option<&Remoteproc>) -> Options<'_> {
        Options { stop: None, remoteproc, withdraw_timeout: LONG, remoteproc_timeout: LONG }
    }

    /// Ends the run if the test fails, which would wait for it otherwise.
    struct EndsIfPanicking(StopHandle);

    impl Drop for EndsIfPanicking {
        fn drop(&mut self) {
            if thread::panicking() {
                self.0.stop_at_once();
                self.0.stop_at_once();
            }
        }
    }

    /// Runs a core in a thread and `test` as Linux, then ends the run unless it has ended.
    fn with_core(
        image: Image,
        remoteproc: Option<&Remoteproc>,
        test: impl FnOnce(&mut Linux, &Fake, &Stop),
    ) -> (Statistics, Result<()>) {
        core_of(&mut Linux::new(image), &patient(remoteproc), test)
    }

    fn core_of(
        linux: &mut Linux,
        options: &Options<'_>,
        test: impl FnOnce(&mut Linux, &Fake, &Stop),
    ) -> (Statistics, Result<()>) {
        let shared = linux.shared();
        let fake = Fake::new();
        let stop = Stop::new().unwrap();
        let options = Options { stop: Some(&stop), ..*options };
        thread::scope(|scope| {
            let core = scope.spawn(|| {
                let mut services = Services::default();
                services.add(Echo::new("echo")).unwrap();
                services.add(Crash::new("crash")).unwrap();
                let mut machine = Machine::new(&shared, &mut services);
                let result = run(&fake, &mut machine, &options, &mut |_| {});
                (machine.statistics(), result)
            });
            let _ends = EndsIfPanicking(stop.handle());
            test(linux, &fake, &stop);
            stop.handle().stop();
            core.join().unwrap()
        })
    }

    fn boot(linux: &mut Linux, fake: &Fake) {
        fake.post(EVENT_START);
        linux.probe();
        fake.kick_core(linux.kicks());
        assert_eq!(receive(linux, fake), *b"echo");
        assert_eq!(receive(linux, fake), *b"cras");
    }

    /// The first four bytes of the next message.
    fn receive(linux: &mut Linux, fake: &Fake) -> [u8; 4] {
        loop {
            if let Some((_, data)) = linux.receive() {
                fake.kick_core(linux.kicks());
                return data[..4].try_into().unwrap();
            }
            assert!(fake.linux_waits(), "a kick is missing");
        }
    }

    fn ping(linux: &mut Linux, fake: &Fake) {
        assert!(linux.send(LINUX, US, b"ping"));
        fake.kick_core(linux.kicks());
        assert_eq!(receive(linux, fake), *b"ping");
    }

    #[test]
    fn a_core_lives_through_start_stop_crash_and_end() {
        let (statistics, result) = with_core(Image::default(), None, |linux, fake, stop| {
            boot(linux, fake);
            ping(linux, fake);
            linux.remove();
            fake.post(EVENT_STOP);
            fake.wait_until(|state| state.stopped == 1);
            boot(linux, fake);
            ping(linux, fake);
            assert!(linux.send(LINUX, US + 1, b"crash"));
            fake.kick_core(linux.kicks());
            fake.wait_until(|state| state.crashed == 1);
            linux.remove();
            boot(linux, fake);
            ping(linux, fake);
            stop.handle().stop();
            assert_eq!(receive(linux, fake), *b"echo");
            assert_eq!(receive(linux, fake), *b"cras");
        });
        result.unwrap();
        assert_eq!((statistics.boots, statistics.crashes), (3, 1));
        assert_eq!(statistics.services[0].received.messages, 3);
    }

    #[test]
    fn a_device_that_goes_ends_the_run_with_an_error() {
        let (_, result) = with_core(Image::default(), None, |linux, fake, _| {
            boot(linux, fake);
            fake.hang_up();
        });
        assert_eq!(result.unwrap_err().errno(), Some(Errno::NODEV));
    }

    #[test]
    fn a_second_request_ends_the_run_at_once() {
        let image = Image::default().entries(2).unwrap();
        let begun = Instant::now();
        let (_, result) = with_core(image, None, |linux, fake, stop| {
            boot(linux, fake);
            // Nothing frees the buffers that the withdrawals need.
            assert!(linux.send(LINUX, US, b"1") && linux.send(LINUX, US, b"2"));
            fake.kick_core(linux.kicks());
            fake.wait_until(|state| state.kicks >= 2);
            stop.handle().stop();
        });
        result.unwrap();
        assert!(begun.elapsed() < LONG);
    }

    #[test]
    fn an_end_at_once_withdraws_nothing() {
        let mut linux = Linux::new(Image::default());
        let (_, result) = core_of(&mut linux, &patient(None), |linux, fake, stop| {
            boot(linux, fake);
            stop.handle().stop_at_once();
        });
        result.unwrap();
        assert_eq!(linux.receive(), None);
    }

    fn remoteproc(state: &str, recovery: &str) -> (tempfile::TempDir, Remoteproc) {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("state"), state).unwrap();
        fs::write(folder.path().join("recovery"), recovery).unwrap();
        let remoteproc = Remoteproc::at(folder.path());
        (folder, remoteproc)
    }

    #[test]
    fn an_offline_remoteproc_is_started_and_stopped() {
        let (_folder, remoteproc) = remoteproc("offline\n", "enabled\n");
        let is = |word: &str| remoteproc.state().unwrap().to_string() == word;
        let (_, result) = with_core(Image::default(), Some(&remoteproc), |linux, fake, _| {
            in_time(|| is("start").then_some(()));
            boot(linux, fake);
        });
        result.unwrap();
        assert!(is("stop"));
    }

    /// A remoteproc whose state is a pipe: whoever opens it waits for the other side.
    fn slow_remoteproc() -> (tempfile::TempDir, PathBuf, Remoteproc) {
        let (folder, remoteproc) = remoteproc("", "enabled\n");
        let state = folder.path().join("state");
        fs::remove_file(&state).unwrap();
        mknodat(CWD, &state, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        (folder, state, remoteproc)
    }

    /// Waits for what a slow remoteproc is told next, which the run waits for as well.
    fn assert_told(state: &Path, words: &str) {
        let mut pipe = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(state).unwrap();
        let mut told = Vec::new();
        in_time(|| {
            // Before there is a writer, and between two of them, it is at its end.
            if let Err(error) = pipe.read_to_end(&mut told) {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
            }
            (told.len() >= words.len()).then_some(())
        });
        assert_eq!(String::from_utf8(told).unwrap(), words);
    }

    /// The state of a slow remoteproc, to be written: the run waits for it.
    fn state_for_run(state: &Path) -> fs::File {
        in_time(|| OpenOptions::new().write(true).custom_flags(NONBLOCK).open(state).ok())
    }

    fn tell_state(mut pipe: fs::File, word: &str) {
        pipe.write_all(word.as_bytes()).unwrap();
        // Whoever reads next, in place of the run, would get it.
        until_read(&pipe);
    }

    fn until_read(source: impl AsFd) {
        in_time(|| (ioctl_fionread(&source).unwrap() == 0).then_some(()));
    }

    const NONBLOCK: i32 = OFlags::NONBLOCK.bits().cast_signed();

    fn in_time<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
        let until = Instant::now() + LONG / 2;
        loop {
            if let Some(found) = attempt() {
                return found;
            }
            assert!(Instant::now() < until, "nothing happens");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_stop_follows_a_start_that_is_under_way() {
        let (_folder, state, remoteproc) = &slow_remoteproc();
        let withdraw_timeout = Duration::from_millis(10);
        let options = Options { withdraw_timeout, ..patient(Some(remoteproc)) };
        let mut linux = Linux::new(Image::default());
        let (_, result) = core_of(&mut linux, &options, |linux, fake, stop| {
            tell_state(state_for_run(state), "offline\n");
            boot(linux, fake);
            stop.handle().stop();
            assert_eq!(receive(linux, fake), *b"echo");
            assert_eq!(receive(linux, fake), *b"cras");
            thread::sleep(20 * withdraw_timeout);
            assert_told(state, "startstop");
        });
        result.unwrap();
    }

    /// A start that hangs, and an end of the run in some way.
    fn a_start_hangs(end: impl FnOnce(&Stop)) -> (Statistics, Error) {
        let (_folder, state, remoteproc) = &slow_remoteproc();
        let remoteproc_timeout = Duration::from_millis(100);
        let options = Options { remoteproc_timeout, ..patient(Some(remoteproc)) };
        let mut linux = Linux::new(Image::default());
        let (statistics, result) = core_of(&mut linux, &options, |_, fake, stop| {
            tell_state(state_for_run(state), "offline\n");
            end(stop);
            // Even if Linux has set up the rings in the meantime, after an end at once.
            fake.post(EVENT_START);
        });
        // The thread that starts it is left alone with that.
        assert_told(state, "start");
        (statistics, result.unwrap_err())
    }

    #[test]
    fn work_hangs_up_though_a_child_has_its_descriptor() {
        let (done, writer) = UnixStream::pair().unwrap();
        let _childs = writer.try_clone().unwrap();
        let is_done = || wait_for([Some(done.as_fd())], Some(Instant::now())).unwrap() == [true];
        assert!(!is_done());
        drop(HangsUp(writer));
        assert!(is_done());
    }

    #[test]
    fn a_start_that_takes_too_long_is_an_error_of_the_end() {
        let (_, error) = a_start_hangs(|_| {});
        assert_eq!(error.errno(), Some(Errno::TIMEDOUT));
        let error = error.to_string();
        assert!(error.contains("the start of") && error.contains("echo stop > "), "{error}");
    }

    #[test]
    fn after_a_request_to_end_at_once_nothing_starts() {
        let (statistics, error) = a_start_hangs(|stop| {
            stop.handle().stop_at_once();
            until_read(stop);
        });
        assert_eq!(error.errno(), Some(Errno::TIMEDOUT));
        assert_eq!(statistics.boots, 0);
    }

    /// Otherwise the stop would hit whoever opens the device next.
    #[test]
    fn a_second_request_waits_for_the_stop_that_is_under_way() {
        let (_folder, state, remoteproc) = &slow_remoteproc();
        let goes_on = AtomicBool::new(false);
        let options = patient(Some(remoteproc));
        let mut linux = Linux::new(Image::default());
        let (_, result) = thread::scope(|scope| {
            let goes_on = &goes_on;
            let result = core_of(&mut linux, &options, |linux, fake, stop| {
                tell_state(state_for_run(state), "offline\n");
                boot(linux, fake);
                assert_told(state, "start");
                stop.handle().stop();
                until_read(stop);
                // By then the start is over, and the names are withdrawn: it waits for the stop.
                thread::sleep(Duration::from_millis(100));
                stop.handle().stop();
                scope.spawn(move || {
                    thread::sleep(Duration::from_millis(100));
                    goes_on.store(true, Ordering::SeqCst);
                    assert_told(state, "stop");
                });
            });
            assert!(goes_on.load(Ordering::SeqCst), "it has ended before");
            result
        });
        result.unwrap();
    }

    #[test]
    fn only_an_offline_remoteproc_need_not_be_stopped() {
        let error = |errno| Err(Error::new("stop", "state", errno));
        let ends = |stopped, state| unless_offline(stopped, || Ok(state));
        ends(Ok(()), RemoteprocState::Running).unwrap();
        ends(error(Errno::INVAL), RemoteprocState::Offline).unwrap();
        for (errno, state) in
            [(Errno::INVAL, RemoteprocState::Crashed), (Errno::ACCESS, RemoteprocState::Offline)]
        {
            assert_eq!(ends(error(errno), state).unwrap_err().errno(), Some(errno));
        }
    }

    #[test]
    fn a_running_remoteproc_is_left_running() {
        let (_folder, remoteproc) = remoteproc("running\n", "enabled\n");
        with_core(Image::default(), Some(&remoteproc), boot_only).1.unwrap();
        assert_eq!(remoteproc.state().unwrap().to_string(), "running");
    }

    fn boot_only(linux: &mut Linux, fake: &Fake, _: &Stop) {
        boot(linux, fake);
    }

    #[test]
    fn a_remoteproc_that_nobody_will_recover_is_an_error() {
        let (_folder, remoteproc) = remoteproc("crashed\n", "disabled\n");
        let (_, result) = with_core(Image::default(), Some(&remoteproc), |_, _, _| {});
        let error = result.unwrap_err().to_string();
        assert!(error.contains("echo recover"), "{error}");
    }

    /// Each side sleeps whenever it has nothing to do: a missing kick would hang this test.
    fn no_kick_is_lost(image: Image, messages: u32) -> Statistics {
        let (statistics, result) = with_core(image, None, |linux, fake, _| {
            boot(linux, fake);
            let (mut sent, mut received) = (0, 0);
            while received < messages {
                let mut idle = true;
                while sent < messages && linux.send(LINUX, US, &sent.to_le_bytes()) {
                    sent += 1;
                    idle = false;
                    fake.kick_core(linux.kicks());
                }
                while let Some((_, data)) = linux.receive() {
                    assert_eq!(data, received.to_le_bytes());
                    received += 1;
                    idle = false;
                    fake.kick_core(linux.kicks());
                }
                assert!(!idle || fake.linux_waits(), "{sent} sent, {received} received");
            }
        });
        result.unwrap();
        assert_eq!(statistics.services[0].sent.messages, u64::from(messages));
        statistics
    }

    #[test]
    fn no_kick_is_lost_with_flags() {
        for entries in [2, 16, 256] {
            no_kick_is_lost(Image::default().entries(entries).unwrap(), 20_000);
        }
    }

    #[test]
    fn no_kick_is_lost_with_event_indices() {
        for entries in [2, 16, 256] {
            no_kick_is_lost(Image::default().entries(entries).unwrap().event_index(true), 20_000);
        }
    }
}
