//! The state of a sink.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, MutexGuard, Weak};

use rustix::io::Errno;

use super::outlet::Outlet;
use crate::block::Block;
use crate::poll::{Deadline, Set};
use crate::stream::dmabuf::{Done, Queue};
use crate::stream::driver::{HasBlock, Pending};
use crate::stream::fileio::Transmit;
use crate::stream::samples::Samples;
use crate::stream::shared::Shared;
use crate::{Error, Result};

#[derive(Debug)]
pub(super) struct State {
    driver: Driver,
    free: Vec<Block>,
    /// How many others there are no more since the end, and are not to be transmitted.
    gone: usize,
    mode: Mode,
    /// How many blocks of sources the driver has.
    foreign: usize,
    guests: Vec<Guests>,
    copied: u64,
    /// What the next call is to return.
    trouble: Option<Error>,
    watched: Watched,
    rings: bool,
}

/// Whether the set is readable while there is something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watched {
    /// Nobody has asked for the descriptor.
    No,
    /// The driver could not be watched yet. The set is kept readable until then.
    Wanted,
    Yes,
}

/// Attached DMABUFs of one source. They stay attached as long as the source or one of its blocks exists.
#[derive(Debug)]
struct Guests {
    home: Weak<()>,
    /// By inode number, which is unique as long as the DMABUF is open.
    dmabufs: HashMap<u64, OwnedFd>,
}

/// The state of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// It was not started yet.
    Off,
    On,
    /// It repeats one block.
    Cyclic,
    /// It was stopped and is not started again.
    Ended,
}

/// How blocks get to the driver.
#[derive(Debug)]
pub(super) enum Driver {
    Dmabuf(Queue<Load>),
    Fileio(Transmit<Load>),
    /// There is none on this machine.
    Outlet(Box<Outlet>),
}

/// A block that the driver has.
#[derive(Debug)]
pub(super) enum Load {
    Own(Block),
    Foreign(Samples),
}

impl Load {
    fn is(&self, samples: &Samples) -> bool {
        matches!(self, Self::Foreign(lent) if lent.is_same(samples))
    }
}

impl HasBlock for Load {
    fn block(&self) -> &Block {
        match self {
            Self::Own(block) => block,
            Self::Foreign(samples) => samples.block().expect("others are copied"),
        }
    }
}

impl Shared<State> {
    /// Watches the driver; an error is returned by the next call.
    pub(super) fn watch(&self, state: &mut State) {
        state.watched = Watched::Wanted;
        if let Err(error) = self.try_watch(state) {
            state.trouble = Some(error);
        }
        self.ring(state);
    }

    /// Watches the driver, if it is to be and is not yet.
    fn try_watch(&self, state: &mut State) -> Result<()> {
        if state.watched == Watched::Wanted {
            state.try_watch(self.set())?;
            state.watched = Watched::Yes;
        }
        Ok(())
    }

    /// Makes the set readable while there is an error to return or a block to have.
    fn ring(&self, state: &mut State) {
        if state.watched == Watched::No {
            return;
        }
        let wanted = state.mode == Mode::Ended
            || state.watched == Watched::Wanted
            || state.trouble.is_some()
            || !state.free.is_empty();
        // An eventfd that exists can be rung.
        let _ = self.bell().set(&mut state.rings, wanted);
    }

    /// Takes a free block.
    pub(super) fn take_free(&self, state: &mut State) -> Option<Block> {
        let block = state.free.pop()?;
        self.ring(state);
        Some(block)
    }

    /// Takes back the blocks that the driver is done with.
    pub(super) fn reap(&self, state: &mut State) -> Result<()> {
        state.forget_guests();
        if let Some(error) = state.trouble.take() {
            self.ring(state);
            return Err(error);
        }
        // The error was returned; until it succeeds, the set is readable all the time.
        let _ = self.try_watch(state);
        if state.mode == Mode::Ended {
            return Err(self.ended("transmit on"));
        }
        let result = state.reap(self.label());
        self.end_if_over(state, &result);
        self.ring(state);
        result
    }

    pub(super) fn refuse_cyclic(&self, state: &State) -> Result<()> {
        if state.mode != Mode::Cyclic {
            return Ok(());
        }
        Err(Error::new("transmit on", self.label(), Errno::BUSY)
            .help("it repeats a block until it is stopped"))
    }

    /// Gives a source's block to the driver.
    pub(super) fn lend(&self, state: &mut State, samples: Samples) -> Result<()> {
        let len = samples.meta().len;
        state.foreign += 1;
        self.push(state, Load::Foreign(samples), len)
    }

    pub(super) fn push(&self, state: &mut State, load: Load, len: usize) -> Result<()> {
        let is_own = matches!(load, Load::Own(_));
        let pushed = self.try_push(state, load, len);
        if pushed.is_err() {
            // It does not count as queued.
            state.gone += usize::from(is_own);
            state.foreign = state.foreign.saturating_sub(usize::from(!is_own));
        }
        pushed
    }

    fn try_push(&self, state: &mut State, load: Load, len: usize) -> Result<()> {
        if state.mode == Mode::Ended {
            return Err(self.ended("transmit on"));
        }
        self.refuse_cyclic(state)?;
        let pushed = state.push(load, len);
        if pushed.is_err() {
            // Without its blocks, the stream would stop sooner or later.
            let _ = self.end(state);
        }
        self.ring(state);
        pushed
    }

    /// Whether the driver has transmitted everything.
    pub(super) fn is_drained(&self, state: &mut State) -> Result<bool> {
        let drained = state.is_drained();
        self.end_if_over(state, &drained);
        drained
    }

    fn end_if_over<T>(&self, state: &mut State, result: &Result<T>) {
        if result.as_ref().is_err_and(|error| error.errno() == Some(Errno::PIPE)) {
            // The first error matters more than one of the end.
            let _ = self.end(state);
        }
    }

    /// Waits until the driver may be done with a block.
    pub(super) fn wait_for_driver<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        deadline: Deadline,
    ) -> Result<MutexGuard<'a, State>> {
        let pending = state.driver.pending();
        self.wait(state, pending, deadline)
    }

    pub(super) fn give_back(&self, block: Block) {
        let mut state = self.lock();
        if state.mode == Mode::Ended {
            state.gone += 1;
        } else {
            state.free.push(block);
            self.ring(&mut state);
        }
        self.notify(&mut state);
    }

    /// Transmits `samples`, which fit into a block, again and again.
    pub(super) fn cyclic(&self, state: &mut State, samples: &[u8]) -> Result<()> {
        let halted = state.halt()?;
        if !halted {
            return Err(Error::new("repeat a block on", self.label(), ErrorKind::Unsupported)
                .help("that needs the interface dmabuf"));
        }
        let Some(block) = state.free.pop() else {
            return Err(Error::new("use", self.label(), Errno::BUSY)
                .help("all of its blocks are being filled"));
        };
        let pushed = state.push_cyclic(block, samples);
        if pushed.is_err() && state.mode != Mode::Off {
            // The driver has the block, but could not be started.
            let _ = self.end(state);
        }
        self.ring(state);
        pushed
    }

    pub(super) fn end(&self, state: &mut State) -> Result<()> {
        self.end_by(state, Outlet::stop)
    }

    /// As [`end`](Self::end), without waiting for a disk or a receiver.
    pub(super) fn leave(&self, state: &mut State) -> Result<()> {
        self.end_by(state, Outlet::leave)
    }

    fn end_by(
        &self,
        state: &mut State,
        outlet_end: impl FnOnce(&mut Outlet) -> Result<()>,
    ) -> Result<()> {
        if state.mode != Mode::Ended {
            state.mode = Mode::Ended;
            self.ring(state);
            state.gone += state.free.len();
            state.free.clear();
            state.guests.clear();
            self.notify(state);
        }
        // Restores again what it could not before.
        match &mut state.driver {
            Driver::Dmabuf(queue) => queue.stop(),
            Driver::Fileio(transmit) => transmit.stop(),
            Driver::Outlet(outlet) => outlet_end(outlet),
        }
    }
}

impl State {
    /// The state before the first block; `free` are the blocks of the sink.
    pub(super) fn new(driver: Driver, free: Vec<Block>) -> Self {
        Self {
            driver,
            free,
            gone: 0,
            mode: Mode::Off,
            foreign: 0,
            guests: Vec::new(),
            copied: 0,
            trouble: None,
            watched: Watched::No,
            rings: false,
        }
    }

    /// Number of its blocks that are not to be transmitted.
    pub(super) fn idle(&self) -> usize {
        self.free.len() + self.gone
    }

    /// How many blocks of sources the driver has.
    pub(super) fn foreign(&self) -> usize {
        self.foreign
    }

    /// Bytes copied so far.
    pub(super) fn copied(&self) -> u64 {
        match &self.driver {
            Driver::Outlet(outlet) => self.copied + outlet.copied(),
            Driver::Dmabuf(_) | Driver::Fileio(_) => self.copied,
        }
    }

    pub(super) fn count_copied(&mut self, len: usize) {
        self.copied += len as u64;
    }

    /// Whether the driver has transmitted everything.
    fn is_drained(&mut self) -> Result<bool> {
        match &mut self.driver {
            Driver::Dmabuf(queue) => Ok(queue.len() == 0),
            Driver::Fileio(transmit) => transmit.is_drained(),
            Driver::Outlet(outlet) => outlet.is_drained(),
        }
    }

    /// Whether the driver can have a received block.
    pub(super) fn can_take(&mut self, samples: &Samples) -> bool {
        let Some((block, home)) = samples.block().zip(samples.kin()) else { return false };
        // A source with one block would have none to receive into.
        if samples.total() < 2 {
            return false;
        }
        let queue = match &self.driver {
            Driver::Dmabuf(queue) if block.is_dmabuf() => queue,
            Driver::Outlet(outlet) => return outlet.borrows(samples),
            Driver::Dmabuf(_) | Driver::Fileio(_) => return false,
        };
        // A driver transmits a block once at a time.
        if queue.loads().any(|load| load.is(samples)) {
            return false;
        }
        let Ok(about) = rustix::fs::fstat(block) else { return false };
        let inode = about.st_ino;
        if self.guests.iter().any(|guests| guests.dmabufs.contains_key(&inode)) {
            return true;
        }
        let Ok(dmabuf) = block.as_fd().try_clone_to_owned() else { return false };
        if queue.attach(block).is_err() {
            return false;
        }
        match self.guests.iter_mut().find(|guests| guests.home.ptr_eq(&home)) {
            Some(guests) => drop(guests.dmabufs.insert(inode, dmabuf)),
            None => self.guests.push(Guests { home, dmabufs: HashMap::from([(inode, dmabuf)]) }),
        }
        true
    }

    /// Detaches the blocks of sources that no longer exist.
    fn forget_guests(&mut self) {
        let gone = self.guests.extract_if(.., |guests| guests.home.strong_count() == 0);
        for dmabuf in gone.flat_map(|guests| guests.dmabufs.into_values()) {
            if let Driver::Dmabuf(queue) = &self.driver {
                queue.detach(&dmabuf);
            }
        }
    }

    fn push(&mut self, load: Load, len: usize) -> Result<()> {
        let first = std::mem::replace(&mut self.mode, Mode::On) == Mode::Off;
        match &mut self.driver {
            Driver::Dmabuf(queue) => {
                queue.push(load, len)?;
                if first { queue.control().enable() } else { Ok(()) }
            }
            Driver::Fileio(transmit) => {
                if first {
                    transmit.start()?;
                }
                transmit.push(load, len);
                self.write()
            }
            Driver::Outlet(outlet) => {
                match load {
                    Load::Own(block) => outlet.push(block, len)?,
                    Load::Foreign(samples) => outlet.lend(samples),
                }
                self.write()
            }
        }
    }

    fn reap(&mut self, label: &str) -> Result<()> {
        loop {
            let Driver::Dmabuf(queue) = &mut self.driver else { return self.write() };
            let Some(Done { load, time: _, result }) = queue.pop()? else { return Ok(()) };
            let failed = result.err().map(|errno| queue.failed(errno));
            self.done(load);
            if self.mode == Mode::Cyclic {
                self.mode = Mode::On;
                return Err(Error::new("repeat a block on", label, ErrorKind::Unsupported)
                    .help("its driver has transmitted the block once only"));
            }
            if let Some(failed) = failed {
                return Err(failed);
            }
        }
    }

    /// Writes as much as the driver takes.
    fn write(&mut self) -> Result<()> {
        let (count, done) = match &mut self.driver {
            Driver::Dmabuf(_) => return Ok(()),
            Driver::Fileio(transmit) => transmit.write()?,
            Driver::Outlet(outlet) => {
                let (free, returned, turned) = outlet.turn();
                self.free.extend(free);
                self.foreign -= returned;
                return turned;
            }
        };
        self.copied += count;
        for load in done {
            self.done(load);
        }
        Ok(())
    }

    fn done(&mut self, load: Load) {
        match load {
            Load::Own(block) => self.free.push(block),
            Load::Foreign(_) => self.foreign -= 1,
        }
    }

    /// Disables the device and takes its blocks back; `false` if it does not take DMABUFs.
    fn halt(&mut self) -> Result<bool> {
        let Driver::Dmabuf(queue) = &mut self.driver else { return Ok(false) };
        queue.end_all()?;
        for load in queue.recall() {
            self.done(load);
        }
        self.mode = Mode::Off;
        Ok(true)
    }

    fn push_cyclic(&mut self, mut block: Block, samples: &[u8]) -> Result<()> {
        let Driver::Dmabuf(queue) = &mut self.driver else { return Ok(()) };
        let filled = block
            .write()
            .map(|mut filling| filling.bytes_mut().slice(..samples.len()).copy_from(samples));
        if let Err(error) = filled {
            self.free.push(block);
            return Err(error);
        }
        self.copied += samples.len() as u64;
        match queue.push_cyclic(Load::Own(block), samples.len()) {
            Ok(Some((load, errno))) => {
                let error = queue.failed(errno);
                self.done(load);
                Err(error)
            }
            pushed => {
                self.mode = Mode::Cyclic;
                pushed?;
                queue.control().enable()
            }
        }
    }

    fn try_watch(&mut self, set: &Arc<Set>) -> Result<()> {
        match &mut self.driver {
            _ if self.mode == Mode::Ended => Ok(()),
            Driver::Dmabuf(queue) => queue.watch(set),
            Driver::Fileio(transmit) => transmit.watch(set),
            Driver::Outlet(outlet) => outlet.watch(set),
        }
    }
}

impl Driver {
    fn pending(&self) -> Pending {
        match self {
            Self::Dmabuf(queue) => queue.pending(),
            Self::Fileio(transmit) => transmit.pending(),
            Self::Outlet(outlet) => outlet.pending(),
        }
    }
}
