//! The devices, and the streams from and to them that clients have opened.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::context::{Channel, Context, Device, Scan};
use super::events::{self, Due, Event, Events};
use super::peer::Machine;
use super::receive::{Feed, Layout, Pool, Receive, Taken};
use super::sysfs::Roots;
use super::transmit::Transmit;
use super::{GIT_TAG, MAJOR, MINOR};
use crate::Error;
use crate::stream::format::{Format, Lost};
use crate::stream::net::watch::Watch;
use crate::stream::samples::Samples;
use crate::stream::scan::{self, Type};
use crate::stream::setup::{Interface, StreamSetup};
use crate::stream::sink::Sink;

/// Blocks that a client may have by default, as libiio has it.
const BUFFERS: usize = 4;
/// Most of them.
const MOST_BUFFERS: usize = 64;
/// Blocks that a converter has while all clients have theirs.
pub(super) const SPARE: usize = 2;
/// Most addresses whose losses are remembered.
const MOST_HOSTS: usize = 64;
/// How long a client waits by default.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Tokens of devices begin here; those of clients are smaller.
pub(super) const DEVICES: u64 = 1 << 40;

/// Descriptors of a block: its memory, and the DMABUF that is made of it.
const PER_BLOCK: usize = 2;
/// Most bytes of the least block.
const LEAST: usize = 64 << 10;
/// Bytes of a block while the channels of a device are found out.
const PREVIEW: usize = 4096;

/// Samples that are missing, since the stream was opened.
pub(super) const LOST: &str = "busbar_lost";
/// Losses of unknown length.
pub(super) const UNKNOWN: &str = "busbar_unknown";
/// Whether a read that begins after a loss fails once with `ENOBUFS`.
pub(super) const REPORT: &str = "busbar_report_loss";
/// Events that are missing in the streams of events.
pub(super) const LOST_EVENTS: &str = "busbar_lost_events";
/// The rate of a device that the library makes.
const RATE: &str = "sampling_frequency";

/// Where the samples of a device come from or go to.
#[derive(Clone, Debug)]
pub(super) enum Origin {
    /// A device of this machine.
    Machine,
    /// `synth:PATTERN`.
    Synth(String, Option<f64>),
    /// A recording.
    Recording(PathBuf, Option<f64>),
    /// What the program pushes, and whether it is lost if nobody takes it.
    Pushed(Format, bool),
}

/// Identifies a client: its token, and its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Who {
    pub client: u64,
    pub host: Machine,
}

#[derive(Debug)]
struct Served {
    origin: Origin,
    buffers: usize,
    receive: Option<Receive>,
    transmit: Option<Transmit>,
    /// Whether the worker has its node open for a moment, which only one can have at a time.
    opening: Arc<AtomicBool>,
    /// Its samples a second, when it was opened last.
    rate: Option<f64>,
}

/// What a new list of devices has changed.
#[derive(Debug, Default)]
pub(super) struct Renewed {
    /// Names of devices.
    pub come: Vec<String>,
    pub gone: Vec<String>,
    /// All of it was taken over. If not, clients have devices open, or count them: try again later.
    pub is_whole: bool,
}

/// What is remembered of a machine that clients have come from.
#[derive(Debug)]
struct Host {
    machine: Machine,
    clients: usize,
    /// `None`: no limit.
    timeout: Option<Duration>,
    reports_loss: bool,
    /// By device.
    tallies: HashMap<usize, Tally>,
    /// Events that are missing, by device.
    lost_events: HashMap<usize, u64>,
}

/// The losses of the streams from one device to one machine.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    streams: usize,
    lost: u64,
    unknown: u64,
}

/// What has happened to a stream.
#[derive(Debug)]
pub(super) enum News {
    Lost { device: usize, host: Machine, lost: Lost },
    LostEvents { device: usize, host: Machine, lost: u64 },
    Failed { device: usize, error: Error },
    Refused { device: usize, host: Machine, why: Shortage },
}

/// What a server has too little of to open a device for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shortage {
    /// Memory for blocks, of which all devices together have [so much](super::ServerSetup#structfield.memory_limit).
    Memory,
    /// Descriptors of the process for blocks: see `RLIMIT_NOFILE`.
    Descriptors,
}

impl std::fmt::Display for Shortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Memory => "its blocks need more memory than is left",
            Self::Descriptors => "its blocks need more descriptors than are left to the process",
        })
    }
}

#[derive(Debug)]
pub(super) struct Hub {
    pub context: Context,
    /// The context as clients of the text protocol get it.
    pub xml: String,
    /// The same for clients of the binary protocol.
    pub xml_with_events: String,
    pub roots: Roots,
    pub is_read_only: bool,
    pub watch: Watch,
    pub copied: u64,
    pub sent: u64,
    devices: Vec<Served>,
    pub events: Events,
    hosts: Vec<Host>,
    memory_limit: usize,
    /// Descriptors that blocks may have.
    descriptor_limit: usize,
    news: Vec<News>,
    /// Blocks that clients may not have read, of devices that they have closed.
    unread: Vec<Unread>,
    /// Places of the devices, sorted by their ids: so clients of libiio 1.x count them.
    sorted: Vec<usize>,
    /// Buffers that clients of the binary protocol have opened, and their devices.
    buffers: Vec<(Who, usize)>,
    /// Bytes in which clients of the binary protocol collect samples.
    collected: Arc<AtomicUsize>,
}

/// What a client was sent by reference of a device that it closes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    /// Whether it was sent a part of a block, and not the rest.
    pub is_begun: bool,
    /// Bytes up to the end of the last of it, since the client has connected.
    pub end: u64,
}

#[derive(Debug)]
struct Unread {
    client: u64,
    /// It has read them once it has read so many bytes.
    end: u64,
    device: usize,
    blocks: Vec<Samples>,
    /// Of the source that they are of.
    layout: Option<Arc<Layout>>,
}

/// Bytes that count against the limit of memory until this is dropped.
#[derive(Debug)]
pub(super) struct Reserved(Arc<AtomicUsize>, usize);

impl Drop for Reserved {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl Served {
    fn new(origin: Origin) -> Self {
        Self {
            origin,
            buffers: BUFFERS,
            receive: None,
            transmit: None,
            opening: Arc::default(),
            rate: None,
        }
    }
}

impl Hub {
    pub(super) fn new(
        mut context: Context,
        origins: Vec<Origin>,
        watch: Watch,
        (memory_limit, most_clients): (usize, usize),
        is_read_only: bool,
    ) -> Self {
        context.devices.iter_mut().for_each(add_own);
        Self {
            xml: context.xml((MAJOR, MINOR, GIT_TAG)),
            xml_with_events: context.xml_with_events((MAJOR, MINOR, GIT_TAG)),
            roots: Roots::default(),
            is_read_only,
            watch,
            copied: 0,
            sent: 0,
            devices: origins.into_iter().map(Served::new).collect(),
            events: Events::default(),
            hosts: Vec::new(),
            memory_limit,
            descriptor_limit: descriptors(most_clients),
            news: Vec::new(),
            unread: Vec::new(),
            sorted: sorted(&context.devices),
            context,
            buffers: Vec::new(),
            collected: Arc::default(),
        }
    }

    /// The device of this number, as clients of libiio 1.x count.
    pub(super) fn numbered(&self, number: usize) -> Option<usize> {
        self.sorted.get(number).copied()
    }

    /// The number of the device of this name.
    pub(super) fn number(&self, name: &str) -> Option<usize> {
        let has_name = |device: &usize| self.context.devices[*device].name.as_deref() == Some(name);
        self.sorted.iter().position(has_name)
    }

    pub(super) fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    /// Whether a client has something open.
    pub(super) fn has_open(&self, client: u64) -> bool {
        let is_open = |it: &Served| {
            it.receive.as_ref().is_some_and(|receive| receive.has(client))
                || it.transmit.as_ref().is_some_and(|transmit| transmit.client == client)
        };
        self.devices.iter().any(is_open)
            || self.buffers.iter().any(|(who, _)| who.client == client)
            || self.events.is_used_by(client)
    }

    /// Whether somebody has a device open.
    fn is_used(&self, device: usize) -> bool {
        let served = &self.devices[device];
        served.receive.is_some()
            || served.transmit.is_some()
            || self.buffers.iter().any(|(_, of)| *of == device)
            || self.events.has(device)
    }

    /// Takes over a new list of the devices of this machine. Devices keep their places: those that have come are behind the
    /// others, or where they were before they had gone. What somebody has open stays as it is.
    ///
    /// Clients of the binary protocol count devices by their numbers in the sorted list: unless `may_renumber`, nothing is
    /// taken over that changes one.
    pub(super) fn renew(&mut self, found: &Context, may_renumber: bool) -> Renewed {
        let mut is_whole = true;
        let mut devices = self.context.devices.clone();
        for (index, device) in devices.iter_mut().enumerate() {
            let is_there = found.devices.iter().any(|it| it.id == device.id);
            if !is_there && self.is_of_machine(index) {
                device.is_gone = !self.is_used(index);
                is_whole &= device.is_gone;
            }
        }
        for device in &found.devices {
            let mut device = device.clone();
            add_own(&mut device);
            match devices.iter().position(|it| it.id == device.id) {
                Some(index) if self.is_used(index) => is_whole &= devices[index] == device,
                Some(index) => devices[index] = device,
                None => devices.push(device),
            }
        }
        let new = sorted(&devices);
        if !may_renumber && !new.starts_with(&self.sorted) {
            return Renewed::default();
        }
        let names = |of: &[usize], but: &[usize]| {
            let of = of.iter().filter(|index| !but.contains(index));
            of.map(|index| devices[*index].shown().to_owned()).collect::<Vec<_>>()
        };
        let (come, gone) = (names(&new, &self.sorted), names(&self.sorted, &new));
        self.devices.resize_with(devices.len(), || Served::new(Origin::Machine));
        self.context.devices = devices;
        self.context.attributes.clone_from(&found.attributes);
        self.sorted = new;
        self.xml = self.context.xml((MAJOR, MINOR, GIT_TAG));
        self.xml_with_events = self.context.xml_with_events((MAJOR, MINOR, GIT_TAG));
        Renewed { come, gone, is_whole }
    }

    /// Whether a device is one of this machine.
    pub(super) fn is_of_machine(&self, device: usize) -> bool {
        matches!(self.devices[device].origin, Origin::Machine)
    }

    /// Opens a device for a client, with so many `buffers` of `samples` each, up to 64.
    pub(super) fn open(
        &mut self,
        device: usize,
        who: Who,
        (buffers, samples): (usize, usize),
        mask: &Mask,
        cyclic: bool,
    ) -> Result<(), Errno> {
        if samples == 0 {
            return Err(Errno::INVAL);
        }
        let buffers = buffers.min(MOST_BUFFERS);
        if self.is_output(device, mask)? {
            let opened = self.open_transmit(device, who, (buffers, samples), mask, cyclic);
            return self.told(device, who.host, opened);
        }
        if cyclic {
            return Err(Errno::PERM);
        }
        let opened = self.open_receive(device, who, (buffers, samples), mask);
        self.told(device, who.host, opened)?;
        let tally = self.host(who.host).tallies.entry(device).or_default();
        if tally.streams == 0 {
            *tally = Tally::default();
        }
        tally.streams += 1;
        Ok(())
    }

    /// Tells the owner of the server if a client is refused for want of something.
    fn told(
        &mut self,
        device: usize,
        host: Machine,
        result: Result<(), Errno>,
    ) -> Result<(), Errno> {
        let why = match result {
            Err(Errno::NOMEM) => Shortage::Memory,
            Err(Errno::MFILE) => Shortage::Descriptors,
            result => return result,
        };
        self.news.push(News::Refused { device, host, why });
        result
    }

    /// Whether these channels transmit.
    fn is_output(&self, device: usize, mask: &Mask) -> Result<bool, Errno> {
        let chosen = self.chosen(device, mask);
        let outputs = chosen.iter().filter(|channel| channel.is_output).count();
        if chosen.is_empty() || (outputs > 0 && outputs < chosen.len()) {
            return Err(Errno::INVAL);
        }
        Ok(outputs > 0)
    }

    /// What [`open`](Self::open) comes to: the channels that will be on, the bytes of a sample of these, and whether they
    /// transmit. A device that nobody has opened is opened for this, and closed again: only then are its channels known.
    pub(super) fn preview(
        &mut self,
        device: usize,
        mask: &Mask,
    ) -> Result<(Mask, usize, bool), Errno> {
        let mask = &self.scanned(device, mask);
        if self.is_output(device, mask)? {
            if self.is_read_only {
                return Err(Errno::PERM);
            }
            if self.devices[device].transmit.is_some() {
                return Err(Errno::BUSY);
            }
            return Ok((mask.clone(), self.sample_len(device, mask)?, true));
        }
        if let Origin::Pushed(format, _) = &self.devices[device].origin {
            let all = Mask::all(self.context.devices[device].channels.len());
            return Ok((all, format.sample_len, false));
        }
        if let Some(receive) = &self.devices[device].receive {
            if receive.refuses(mask) {
                return Err(Errno::BUSY);
            }
            let union = receive.mask().or(mask);
            let sample_len = self.sample_len(device, &union)?;
            return Ok((union, sample_len, false));
        }
        let samples = (PREVIEW / self.sample_len(device, mask)?).max(1);
        let pool = self.pool(device, (BUFFERS, samples), mask, 0, None)?;
        let receive = self.feed(device, mask, pool)?;
        Ok((receive.mask().clone(), receive.lengths().0, false))
    }

    /// The channels that can be in a buffer.
    fn scanned(&self, device: usize, mask: &Mask) -> Mask {
        let channels = &self.context.devices[device].channels;
        let mut found = Mask::none(channels.len());
        let scanned = (0..).zip(channels).filter(|(_, channel)| channel.scan.is_some());
        scanned.filter(|(index, _)| mask.has(*index)).for_each(|(index, _)| found.set(index));
        found
    }

    fn sample_len(&self, device: usize, mask: &Mask) -> Result<usize, Errno> {
        let scan = self.chosen(device, mask).into_iter().filter_map(|it| it.scan.clone());
        sample_len(&scan.collect::<Vec<_>>()).filter(|len| *len > 0).ok_or(Errno::INVAL)
    }

    /// The channels of a client that receives stay as they are: nobody gets further ones meanwhile.
    ///
    /// # Errors
    ///
    /// `EBUSY` if they are others than `mask`.
    pub(super) fn fix(&mut self, device: usize, client: u64, mask: &Mask) -> Result<(), Errno> {
        let receive = self.devices[device].receive.as_mut().ok_or(Errno::BADF)?;
        if receive.mask() != mask {
            return Err(Errno::BUSY);
        }
        receive.fix(client);
        Ok(())
    }

    /// A client of the binary protocol has opened a buffer.
    pub(super) fn add_buffer(&mut self, device: usize, who: Who) {
        self.buffers.push((who, device));
    }

    pub(super) fn remove_buffer(&mut self, device: usize, who: Who) {
        self.buffers.retain(|it| *it != (who, device));
    }

    /// Whether a client of this machine has such a buffer: libiio 1.x frees it by another connection than it has opened it.
    pub(super) fn has_buffer(&self, device: usize, host: Machine) -> bool {
        self.buffers.iter().any(|(who, of)| *of == device && who.host == host)
    }

    /// Takes so many bytes of the memory that blocks may have.
    pub(super) fn reserve(
        &mut self,
        device: usize,
        host: Machine,
        bytes: usize,
    ) -> Result<Reserved, Errno> {
        let has_room = if bytes > self.room() { Err(Errno::NOMEM) } else { Ok(()) };
        self.told(device, host, has_room)?;
        self.collected.fetch_add(bytes, Ordering::Relaxed);
        Ok(Reserved(Arc::clone(&self.collected), bytes))
    }

    fn chosen(&self, device: usize, mask: &Mask) -> Vec<&Channel> {
        let channels = self.context.devices[device].channels.iter().enumerate();
        let is_chosen =
            |(index, channel): &(usize, &Channel)| channel.scan.is_some() && mask.has(*index);
        channels.filter(is_chosen).map(|(_, channel)| channel).collect()
    }

    fn open_receive(
        &mut self,
        device: usize,
        who: Who,
        (buffers, samples): (usize, usize),
        mask: &Mask,
    ) -> Result<(), Errno> {
        if let Origin::Pushed(format, is_paced) = &self.devices[device].origin {
            let all = Mask::all(self.context.devices[device].channels.len());
            let pushed = Receive::pushed(&all, format, *is_paced);
            self.devices[device].receive.get_or_insert(pushed);
            return self.join(device, who);
        }
        if let Some(before) = &self.devices[device].receive {
            if before.has(who.client) {
                return Err(Errno::BUSY);
            }
            if before.suits(mask) {
                return self.join(device, who);
            }
            if before.refuses(mask) {
                return Err(Errno::BUSY);
            }
        }
        let before = self.devices[device].receive.as_ref();
        let readers = before.map_or(0, Receive::readers);
        let union = before.map_or(mask.clone(), |it| it.mask().or(mask));
        // Nobody gets shorter blocks, or fewer, because of another.
        let pool = before.map(Receive::pool).unwrap_or_default();
        let wanted = (buffers.max(pool.buffers), samples.max(pool.samples));
        let new = self.pool(device, wanted, &union, readers + 1, before)?;
        let Some(before) = self.devices[device].receive.take() else {
            let mut receive = self.feed(device, &union, new)?;
            // The rate of a device of this machine is known now.
            self.devices[device].rate = receive.rate();
            let again = self.pool(device, wanted, &union, 1, None)?;
            // Another rate than before makes blocks of another length.
            if again.samples != new.samples {
                drop(receive);
                receive = self.feed(device, &union, again)?;
            }
            self.devices[device].receive = Some(receive);
            return self.join(device, who);
        };
        let waiting = before.close();
        let (mut receive, result) = match self.feed(device, &union, new) {
            Ok(receive) => (receive, Ok(())),
            // Those who were there go on as before.
            Err(errno) => {
                let again = self.feed(device, &waiting.mask, waiting.pool);
                (again.unwrap_or_else(|errno| Receive::failed(&waiting.mask, errno)), Err(errno))
            }
        };
        let losses = receive.adopt(waiting);
        self.devices[device].receive = Some(receive);
        self.note(device, losses);
        result.and_then(|()| self.join(device, who))
    }

    /// Adds a reader to a device that is open.
    fn join(&mut self, device: usize, who: Who) -> Result<(), Errno> {
        let unread = self.unread_here(device);
        let receive = self.devices[device].receive.as_mut().ok_or(Errno::BADF)?;
        let losses = receive.join(who, unread)?;
        self.note(device, losses);
        Ok(())
    }

    /// Blocks of the source of a device that clients have not read which have closed it.
    fn unread_here(&self, device: usize) -> usize {
        let here = self.unread.iter().filter(|it| self.is_of_source(it));
        here.filter(|it| it.device == device).map(|it| it.blocks.len()).sum()
    }

    /// Whether these blocks count with the source of their device, which is open.
    fn is_of_source(&self, unread: &Unread) -> bool {
        let receive = self.devices[unread.device].receive.as_ref();
        receive.zip(unread.layout.as_ref()).is_some_and(|(receive, layout)| receive.is_of(layout))
    }

    /// The blocks of a source for so many readers, each with so many `buffers` of `samples`, as far as the limits of the
    /// server allow. They may have those of the source `before`, which they replace.
    fn pool(
        &self,
        device: usize,
        (buffers, samples): (usize, usize),
        mask: &Mask,
        readers: usize,
        before: Option<&Receive>,
    ) -> Result<Pool, Errno> {
        let sample_len = self.sample_len(device, mask)?;
        let rate = match self.devices[device].origin {
            Origin::Synth(_, rate) | Origin::Recording(_, rate) => rate,
            Origin::Machine => self.devices[device].rate,
            Origin::Pushed(..) => None,
        };
        // A whole number of what clients read at a time.
        let samples = least(rate, sample_len).next_multiple_of(samples.max(1)).min(most(rate));
        let block_len = samples.checked_mul(sample_len).ok_or(Errno::NOMEM)?;
        // With room for one reader more, so that it can join without a gap.
        let wanted = buffers * (readers + 1) + SPARE;
        // What clients have not read stays.
        let (own, own_len) = before.map_or((0, 0), |it| {
            let stays = it.kept() + self.unread_here(device);
            (it.pool().blocks.saturating_sub(stays), it.lengths().1)
        });
        let room = self.room_of(device).saturating_add(own * own_len);
        let most = wanted.min(StreamSetup::MAX_BLOCKS);
        let of_memory = room / block_len.max(1);
        let blocks = self.blocks(most, SPARE + readers, of_memory, own)?;
        let lack = if blocks == of_memory { Errno::NOMEM } else { Errno::MFILE };
        Ok(Pool { samples, blocks, buffers, lack: (blocks < wanted).then_some(lack) })
    }

    /// How many blocks there may be, of `least` to `most`, by the memory for them and by the descriptors that are left,
    /// and those of so many blocks that go.
    fn blocks(
        &self,
        most: usize,
        least: usize,
        of_memory: usize,
        go: usize,
    ) -> Result<usize, Errno> {
        let of_descriptors = self.free_descriptors() / PER_BLOCK + go;
        let blocks = most.min(of_memory).min(of_descriptors);
        if blocks < least {
            return Err(if of_memory <= of_descriptors { Errno::NOMEM } else { Errno::MFILE });
        }
        Ok(blocks)
    }

    /// Opens the source of a device.
    fn feed(&self, device: usize, mask: &Mask, pool: Pool) -> Result<Receive, Errno> {
        let scan = self.chosen(device, mask).into_iter().filter_map(|channel| channel.scan.clone());
        let scan: Vec<_> = scan.collect();
        let sample_len = sample_len(&scan).ok_or(Errno::INVAL)?;
        let block_len = pool.samples.checked_mul(sample_len).ok_or(Errno::NOMEM)?;
        let setup = StreamSetup::new().blocks(pool.blocks).block_len(block_len);
        let id = &self.context.devices[device].id;
        let open = || {
            let names = scan.iter().map(|scan| scan.name.clone());
            let feed = match &self.devices[device].origin {
                Origin::Machine => Feed::open(&format!("iio:{id}"), setup.clone().channels(names)),
                Origin::Synth(name, _) => Feed::open(name, setup.clone().channels(names)),
                Origin::Recording(path, _) => Feed::play(path, &setup),
                Origin::Pushed(..) => return Err(Errno::INVAL),
            };
            feed.map_err(|error| errno(&error))
        };
        let feed = self.while_opening(device, open)?;
        self.watch.add(&feed, DEVICES + device as u64).map_err(|error| errno(&error))?;
        let is_paced = match &self.devices[device].origin {
            Origin::Synth(_, rate) => rate.is_some(),
            Origin::Recording(..) => false,
            Origin::Machine => feed.format().rate.is_some(),
            Origin::Pushed(..) => true,
        };
        let names: Vec<_> = feed.format().channels.iter().map(|it| it.name.as_str()).collect();
        let on = self.context.devices[device].channels.iter().enumerate().filter(|(_, channel)| {
            let name = channel.scan.as_ref().map(|scan| scan.name.as_str());
            !channel.is_output && name.is_some_and(|name| names.contains(&name))
        });
        let mut is = Mask::none(self.context.devices[device].channels.len());
        on.for_each(|(index, _)| is.set(index));
        Ok(Receive::new(feed, &is, pool, is_paced))
    }

    /// Bytes of blocks that may be allocated.
    pub(super) fn room(&self) -> usize {
        let of_device = |it: &Served| {
            let receive = it.receive.as_ref();
            receive.map_or(0, Receive::memory) + it.transmit.as_ref().map_or(0, Transmit::memory)
        };
        let blocks: usize = self.devices.iter().map(of_device).sum();
        let others: usize = self.others().map(|block| block.meta().len).sum();
        let used =
            blocks.saturating_add(others).saturating_add(self.collected.load(Ordering::Relaxed));
        self.memory_limit.saturating_sub(used)
    }

    /// The same for one device: half of it, as long as there are others that are closed.
    fn room_of(&self, device: usize) -> usize {
        let is_closed = |(other, served): (usize, &Served)| {
            other != device && served.receive.is_none() && served.transmit.is_none()
        };
        self.room() / if self.devices.iter().enumerate().any(is_closed) { 2 } else { 1 }
    }

    /// Blocks of sources that were closed, which clients have not read.
    fn others(&self) -> impl Iterator<Item = &Samples> {
        let unread = self.unread.iter().filter(|it| !self.is_of_source(it));
        let old = self.devices.iter().filter_map(|it| it.receive.as_ref());
        unread.flat_map(|it| &it.blocks).chain(old.flat_map(Receive::old))
    }

    /// Descriptors that blocks may still have.
    fn free_descriptors(&self) -> usize {
        let of_device = |it: &Served| {
            let receive = it.receive.as_ref().map_or(0, Receive::blocks);
            receive + it.transmit.as_ref().map_or(0, Transmit::blocks)
        };
        let blocks = self.devices.iter().map(of_device).sum::<usize>() + self.others().count();
        self.descriptor_limit.saturating_sub(blocks * PER_BLOCK)
    }

    fn open_transmit(
        &mut self,
        device: usize,
        who: Who,
        (buffers, samples): (usize, usize),
        mask: &Mask,
        cyclic: bool,
    ) -> Result<(), Errno> {
        if self.is_read_only {
            return Err(Errno::PERM);
        }
        if self.devices[device].transmit.is_some() {
            return Err(Errno::BUSY);
        }
        let scan: Vec<_> =
            self.chosen(device, mask).into_iter().filter_map(|it| it.scan.clone()).collect();
        let sample_len = sample_len(&scan).ok_or(Errno::INVAL)?;
        let block_len = samples.checked_mul(sample_len).ok_or(Errno::NOMEM)?;
        // What is repeated is collected in one more, which has to be told from one that is too long.
        let cycle = if cyclic { block_len.saturating_add(1) } else { 0 };
        let of_memory = self.room_of(device).saturating_sub(cycle) / block_len.max(1);
        let blocks = self.blocks(buffers.max(2), 1, of_memory, 0)?;
        let names = scan.into_iter().map(|scan| scan.name);
        let setup = StreamSetup::new().blocks(blocks).block_len(block_len).channels(names);
        let name = format!("iio:{}", self.context.devices[device].id);
        let open = || Sink::open(&name, &setup).map_err(|error| errno(&error));
        let sink = self.while_opening(device, open)?;
        if cyclic && sink.interface() != Interface::Dmabuf {
            return Err(Errno::PERM);
        }
        self.watch.add(&sink, DEVICES + device as u64).map_err(|error| errno(&error))?;
        self.devices[device].transmit = Some(Transmit::new(sink, who.client, cyclic));
        Ok(())
    }

    /// What a client transmits to a device.
    pub(super) fn transmit(&mut self, device: usize, client: u64) -> Result<&mut Transmit, Errno> {
        let served = &mut self.devices[device];
        if served.receive.as_ref().is_some_and(|it| it.has(client)) {
            return Err(Errno::PERM);
        }
        let transmit = served.transmit.as_mut().filter(|it| it.client == client);
        transmit.ok_or(Errno::BADF)
    }

    /// Closes what a client has opened. What it transmits ends at once.
    pub(super) fn close(&mut self, device: usize, who: Who, sent: Sent) -> Result<(), Errno> {
        let unread = self.unread_here(device);
        let served = &mut self.devices[device];
        if served.transmit.as_ref().is_some_and(|it| it.client == who.client) {
            served.transmit = None;
            return Ok(());
        }
        let receive = served.receive.as_mut().filter(|it| it.has(who.client));
        let receive = receive.ok_or(Errno::NXIO)?;
        let layout = Arc::clone(receive.layout());
        let left = receive.leave(who.client, sent.is_begun, unread);
        if receive.readers() == 0 {
            served.receive = None;
        }
        for (blocks, layout) in [(left.old, None), (left.blocks, Some(layout))] {
            if !blocks.is_empty() {
                let (client, end) = (who.client, sent.end);
                self.unread.push(Unread { client, end, device, blocks, layout });
            }
        }
        if let Some(tally) = self.host(who.host).tallies.get_mut(&device) {
            tally.streams = tally.streams.saturating_sub(1);
        }
        Ok(())
    }

    /// A client has connected.
    pub(super) fn enter(&mut self, host: Machine) {
        self.host(host).clients += 1;
    }

    /// A client is gone: closes all that it has opened.
    pub(super) fn leave(&mut self, who: Who) {
        for device in 0..self.devices.len() {
            let _ = self.close(device, who, Sent::default());
        }
        self.buffers.retain(|(of, _)| of.client != who.client);
        self.unread.retain(|it| it.client != who.client);
        self.share_anew();
        self.events.leave(who.client);
        let host = self.host(who.host);
        host.clients = host.clients.saturating_sub(1);
        // Whoever comes next has not asked for it.
        host.reports_loss &= host.clients > 0;
    }

    /// What is remembered of a machine. The oldest without a client is forgotten if there are too many.
    fn host(&mut self, machine: Machine) -> &mut Host {
        if let Some(index) = self.hosts.iter().position(|it| it.machine == machine) {
            return &mut self.hosts[index];
        }
        if self.hosts.len() >= MOST_HOSTS
            && let Some(index) = self.hosts.iter().position(|it| it.clients == 0)
        {
            self.hosts.remove(index);
        }
        let timeout = Some(TIMEOUT);
        self.hosts.push(Host {
            machine,
            clients: 0,
            timeout,
            reports_loss: false,
            tallies: HashMap::new(),
            lost_events: HashMap::new(),
        });
        let last = self.hosts.len() - 1;
        &mut self.hosts[last]
    }

    /// Another machine may come in the place of this one, which has no clients.
    #[cfg(feature = "usb")]
    pub(super) fn forget(&mut self, machine: Machine) {
        self.hosts.retain(|host| host.machine != machine || host.clients > 0);
    }

    pub(super) fn timeout(&mut self, host: Machine) -> Option<Duration> {
        self.host(host).timeout
    }

    pub(super) fn set_timeout(&mut self, host: Machine, millis: u32) {
        let timeout = Duration::from_millis(millis.into());
        self.host(host).timeout = (millis > 0).then_some(timeout);
    }

    /// The number of blocks that text clients of a device have.
    pub(super) fn buffers(&self, device: usize) -> usize {
        self.devices[device].buffers
    }

    /// Whether a client can be sent a block by reference and still has room for another: it may ask for that before it
    /// says that it has read the first.
    pub(super) fn can_hold(&self, device: usize, client: u64) -> bool {
        self.devices[device].receive.as_ref().is_some_and(|receive| receive.can_hold(client))
    }

    pub(super) fn set_buffers(&mut self, device: usize, count: i64) -> Result<(), Errno> {
        if count < 1 {
            return Err(Errno::INVAL);
        }
        let count = usize::try_from(count).unwrap_or(MOST_BUFFERS);
        self.devices[device].buffers = count.min(MOST_BUFFERS);
        Ok(())
    }

    /// The value of an attribute that Linux does not have.
    pub(super) fn own(&mut self, device: usize, host: Machine, name: &str) -> Option<String> {
        let tally = self.host(host).tallies.get(&device).copied().unwrap_or_default();
        let reports = self.host(host).reports_loss;
        let lost_events = self.host(host).lost_events.get(&device).copied().unwrap_or_default();
        let described = &self.context.devices[device];
        let (has_buffer, has_events) = (described.has_buffer(), described.has_events());
        match (name, &self.devices[device].origin) {
            (LOST, _) if has_buffer => Some(tally.lost.to_string()),
            (UNKNOWN, _) if has_buffer => Some(tally.unknown.to_string()),
            (REPORT, _) if has_buffer => Some(u8::from(reports).to_string()),
            (LOST_EVENTS, _) if has_events => Some(lost_events.to_string()),
            (RATE, Origin::Synth(_, rate) | Origin::Recording(_, rate)) => {
                rate.map(|rate| rate.to_string())
            }
            (RATE, Origin::Pushed(format, _)) => format.rate.map(|rate| rate.to_string()),
            _ => None,
        }
    }

    /// Writes such an attribute.
    pub(super) fn set_own(&mut self, host: Machine, name: &str, value: &[u8]) -> Result<(), Errno> {
        let value = value.iter().take_while(|byte| !matches!(byte, 0 | b'\n'));
        let value: Vec<_> = value.copied().collect();
        match (name, value.as_slice()) {
            (REPORT, b"0" | b"1") => {
                self.host(host).reports_loss = value == b"1";
                Ok(())
            }
            (REPORT, _) => Err(Errno::INVAL),
            _ => Err(Errno::ACCESS),
        }
    }

    /// How to open the events of a device, so that a stream of them can be [created](Self::create_events). `None`: they are
    /// open.
    ///
    /// # Errors
    ///
    /// `ENODEV` if it has none, and those of [`Events::check`].
    pub(super) fn prepare_events(
        &self,
        device: usize,
        client: u64,
        id: u16,
    ) -> Result<Option<impl FnOnce() -> Result<OwnedFd, Errno> + use<>>, Errno> {
        let described = &self.context.devices[device];
        if !described.has_events() {
            return Err(Errno::NODEV);
        }
        self.events.check(device, client, id)?;
        let (name, opening) = (described.id.clone(), Arc::clone(&self.devices[device].opening));
        let open = move || events::open(&name, &opening);
        Ok((!self.events.has(device)).then_some(open))
    }

    /// Tries to open a device, whose node the worker may have open for a moment.
    fn while_opening<T>(
        &self,
        device: usize,
        open: impl FnMut() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        events::while_busy(open, || self.devices[device].opening.load(Ordering::SeqCst))
    }

    /// Creates a stream of events of a device, which are opened for that unless they are open.
    pub(super) fn create_events(
        &mut self,
        device: usize,
        client: u64,
        id: u16,
        opened: Option<Result<OwnedFd, Errno>>,
    ) -> Result<(), Errno> {
        let file = match opened.transpose() {
            // Another client was first.
            Err(Errno::BUSY) if self.events.has(device) => None,
            opened => opened?,
        };
        self.events.create(device, client, id, file, &self.watch)
    }

    /// The next answer to a client that has asked for events: to whom it is, and an event.
    pub(super) fn next_event(&mut self, who: Who) -> Option<(u16, Result<Event, Errno>)> {
        if self.events.is_empty() {
            return None;
        }
        let Due { device, to, lost, event } = self.events.next(who.client)?;
        if lost > 0 {
            let all = self.host(who.host).lost_events.entry(device).or_default();
            *all = all.saturating_add(lost);
            self.news.push(News::LostEvents { device, host: who.host, lost });
        }
        Some((to, event))
    }

    /// Takes samples from the source of a device, and gives them to all of its readers. Returns whether there
    /// were some.
    pub(super) fn pump(&mut self, device: usize) -> bool {
        let Some(receive) = &mut self.devices[device].receive else { return false };
        let (moved, losses, failed) = receive.pump();
        self.note(device, losses);
        if let Some(error) = failed {
            self.news.push(News::Failed { device, error });
        }
        moved
    }

    /// The devices from which samples are received.
    pub(super) fn pump_all(&mut self) -> bool {
        (0..self.devices.len()).fold(false, |moved, device| self.pump(device) | moved)
    }

    fn note(&mut self, device: usize, losses: Vec<(Machine, Lost)>) {
        for (host, lost) in losses {
            let tally = self.host(host).tallies.entry(device).or_default();
            match lost {
                Lost::Samples(lost) => tally.lost = tally.lost.saturating_add(lost),
                Lost::Unknown => tally.unknown += 1,
            }
            self.news.push(News::Lost { device, host, lost });
        }
    }

    /// The next samples for a client: see [`Receive::take`].
    pub(super) fn take(
        &mut self,
        device: usize,
        who: Who,
        most: usize,
        layout: Option<&Arc<Layout>>,
    ) -> Result<Taken, Errno> {
        self.pump(device);
        let reports_loss = self.host(who.host).reports_loss;
        let served = &mut self.devices[device];
        if served.transmit.as_ref().is_some_and(|it| it.client == who.client) {
            return Err(Errno::PERM);
        }
        let receive = served.receive.as_mut().filter(|it| it.has(who.client));
        receive.ok_or(Errno::BADF)?.take(who.client, most, layout, reports_loss)
    }

    /// Bytes of a sample and of a block that a client receives.
    pub(super) fn lengths(&self, device: usize, client: u64) -> Result<(usize, usize), Errno> {
        let served = &self.devices[device];
        if let Some(transmit) = served.transmit.as_ref().filter(|it| it.client == client) {
            return Ok(transmit.lengths());
        }
        let receive = served.receive.as_ref().filter(|it| it.has(client));
        receive.map(Receive::lengths).ok_or(Errno::BADF)
    }

    /// Gives samples to the readers of a device that has no source of its own. Returns whether they were taken.
    pub(super) fn push(&mut self, device: usize, samples: &Samples, lost: Lost) -> bool {
        let unread = self.unread_here(device);
        let served = &mut self.devices[device];
        let Origin::Pushed(_, is_paced) = served.origin else { return false };
        let Some(receive) = &mut served.receive else { return is_paced };
        let (taken, losses) = receive.push(samples, lost, unread);
        self.note(device, losses);
        taken
    }

    /// Whether readers have not got everything yet.
    pub(super) fn has_waiting(&self) -> bool {
        self.devices.iter().any(|it| it.receive.as_ref().is_some_and(Receive::has_waiting))
    }

    /// Whether a client has opened a device to receive from it.
    pub(super) fn has_readers(&self, device: usize) -> bool {
        self.devices[device].receive.is_some()
    }

    /// A device has no more samples.
    pub(super) fn finish(&mut self, device: usize) {
        if let Some(receive) = &mut self.devices[device].receive {
            receive.end(Errno::PIPE);
        }
    }

    /// Keeps a block that was sent by reference until the client has read everything.
    pub(super) fn hold(
        &mut self,
        device: usize,
        client: u64,
        samples: Samples,
        layout: &Arc<Layout>,
    ) {
        if let Some(receive) = &mut self.devices[device].receive {
            receive.hold(client, samples, layout);
        }
    }

    /// A client has read the first of the blocks of a device that are [kept](Self::hold) for it.
    pub(super) fn release(&mut self, device: usize, client: u64) {
        if let Some(receive) = &mut self.devices[device].receive {
            receive.release(client);
        }
    }

    /// A client has read so many of the bytes that it was sent, among them blocks of devices that it has closed.
    pub(super) fn release_closed(&mut self, client: u64, read: u64) {
        let before = self.unread.len();
        self.unread.retain(|it| it.client != client || it.end > read);
        if self.unread.len() < before {
            self.share_anew();
        }
    }

    /// Blocks that have come back are for the readers that are left.
    fn share_anew(&mut self) {
        for device in 0..self.devices.len() {
            let unread = self.unread_here(device);
            if let Some(receive) = &mut self.devices[device].receive {
                receive.share_anew(unread);
            }
        }
    }
}

/// The channels of a device that are selected, a bit for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mask(Vec<u32>);

impl Mask {
    pub(super) fn none(channels: usize) -> Self {
        Self(vec![0; channels.div_ceil(32)])
    }

    fn all(channels: usize) -> Self {
        let mut all = Self::none(channels);
        (0..channels).for_each(|index| all.set(index));
        all
    }

    /// Hexadecimal, 8 digits for each 32 channels, the last channels first.
    pub(super) fn parse(text: &str, channels: usize) -> Option<Self> {
        let words = text.as_bytes().rchunks(8).map(|digits| {
            let digits = std::str::from_utf8(digits).ok().filter(|it| it.len() == 8)?;
            let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_hex.then(|| u32::from_str_radix(digits, 16).ok())?
        });
        let words: Vec<_> = words.collect::<Option<_>>()?;
        (words.len() == channels.div_ceil(32) && !words.is_empty()).then_some(Self(words))
    }

    /// From words of 32 channels each.
    pub(super) fn of_words(words: Vec<u32>) -> Self {
        Self(words)
    }

    pub(super) fn words(&self) -> &[u32] {
        &self.0
    }

    fn has(&self, index: usize) -> bool {
        self.0.get(index / 32).is_some_and(|word| word >> (index % 32) & 1 == 1)
    }

    pub(super) fn set(&mut self, index: usize) {
        self.0[index / 32] |= 1 << (index % 32);
    }

    /// Whether all channels of `other` are in it.
    pub(super) fn covers(&self, other: &Self) -> bool {
        self.0.len() == other.0.len()
            && self.0.iter().zip(&other.0).all(|(it, other)| other & !it == 0)
    }

    fn or(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(one, other)| one | other).collect())
    }

    /// As [`parse`](Self::parse) reads it.
    pub(super) fn text(&self) -> String {
        self.0.iter().rev().fold(String::new(), |text, word| format!("{text}{word:08x}"))
    }
}

/// Adds the attributes that the server gives to a device of its own.
fn add_own(device: &mut Device) {
    let (has_buffer, has_events) = (device.has_buffer(), device.has_events());
    let own = [
        (LOST, has_buffer),
        (UNKNOWN, has_buffer),
        (REPORT, has_buffer),
        (LOST_EVENTS, has_events),
    ];
    let own = own.into_iter().filter(|(_, has)| *has).map(|(name, _)| name.to_owned());
    device.attributes.extend(own);
    device.attributes.sort();
}

/// The places of the devices that are there, sorted by their ids.
fn sorted(devices: &[Device]) -> Vec<usize> {
    let mut sorted: Vec<_> = (0..devices.len()).filter(|it| !devices[*it].is_gone).collect();
    sorted.sort_by(|one, other| devices[*one].id.cmp(&devices[*other].id));
    sorted
}

/// Descriptors that the blocks of a server for so many clients may have: the limit of the process, without two for each
/// client and some for what else it has open.
fn descriptors(clients: usize) -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    limit.saturating_sub(clients.saturating_mul(2).saturating_add(64)).max(limit / 4)
}

/// The fewest samples of a block: of a millisecond, but of 64 KiB at most. A client may ask for single ones, which would cost a
/// processor if each were a block.
fn least(rate: Option<f64>, sample_len: usize) -> usize {
    let most = (LEAST / sample_len.max(1)).max(1);
    // It is whole. What is no number is 0, what is too large the largest.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let wanted = rate.map_or(1, |rate| (rate / 1000.0).ceil() as usize).max(1);
    wanted.min(most)
}

/// The most samples of a block: of a quarter of a second, as others have to wait for one that is longer.
fn most(rate: Option<f64>) -> usize {
    // What is too large is the largest.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    rate.map_or(usize::MAX, |rate| (rate / 4.0).ceil() as usize).max(1)
}

fn sample_len(scan: &[Scan]) -> Option<usize> {
    let layout = scan.iter().map(|scan| (scan.index, scan.name.clone(), scan.kind)).collect();
    scan::layout(layout).map(|(_, len)| len)
}

/// The number of the system for an error.
pub(super) fn errno(error: &Error) -> Errno {
    error.errno().unwrap_or(match error.kind() {
        std::io::ErrorKind::InvalidInput => Errno::INVAL,
        std::io::ErrorKind::Unsupported => Errno::OPNOTSUPP,
        std::io::ErrorKind::BrokenPipe => Errno::PIPE,
        _ => Errno::IO,
    })
}

/// A device of the library's own, with the channels of a format.
pub(super) fn device(number: usize, name: &str, format: &Format) -> Device {
    let channel = |(index, channel): (u32, &crate::stream::Channel)| Channel {
        id: channel.name.clone(),
        scan: Some(Scan {
            index,
            kind: Type {
                big_endian: channel.big_endian,
                signed: channel.signed,
                bits: channel.bits,
                storage_bits: channel.storage_bits,
                repeat: channel.repeat,
                shift: channel.shift,
            },
            scale: None,
            name: channel.name.clone(),
        }),
        ..Channel::default()
    };
    Device {
        id: format!("iio:device{number}"),
        name: Some(name.into()),
        channels: (0..).zip(&format.channels).map(channel).collect(),
        attributes: format.rate.map(|_| RATE.into()).into_iter().collect(),
        ..Device::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_have_eight_digits_for_each_thirty_two_channels() {
        let mask = Mask::parse("00000001800000ff", 40).unwrap();
        assert!(mask.has(0) && mask.has(31) && mask.has(32) && !mask.has(8) && !mask.has(99));
        assert_eq!(mask.text(), "00000001800000ff");
        for (text, channels) in [
            ("", 0),
            ("", 1),
            ("ff", 4),
            ("000000ff", 33),
            ("000000fg", 4),
            ("+00000ff", 4),
            ("0000000é", 4),
        ] {
            assert_eq!(Mask::parse(text, channels), None, "{text}");
        }
        let (one, both) = (Mask::parse("00000001", 2).unwrap(), Mask::all(2));
        assert!(both.covers(&one) && !one.covers(&both));
        assert_eq!(one.or(&both), both);
    }
}
