//! Blocks of sources, which the controller takes in place.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use busbar_uapi::dmabuf::{self, Access};
use busbar_uapi::functionfs;
use rustix::io::Errno;

use super::super::IN_PLACE;
use super::{Endpoints, broken};
use crate::block::Block;
use crate::stream::dmabuf::persist;
use crate::stream::samples::Samples;
use crate::stream::setup::Interface;

/// Attached DMABUFs, as long as their source or one of its blocks exists.
#[derive(Debug)]
pub(in crate::stream::usb) struct Guests {
    endpoints: Arc<Endpoints>,
    interface: Option<Interface>,
    /// By inode number, which is unique as long as the DMABUF is open.
    dmabufs: HashMap<u64, (OwnedFd, Weak<()>)>,
    /// Blocks that the host fills.
    landing: HashMap<u64, OwnedFd>,
    /// The controller takes none.
    is_off: bool,
}

impl Guests {
    pub(in crate::stream::usb) fn new(
        endpoints: Arc<Endpoints>,
        interface: Option<Interface>,
    ) -> Self {
        let is_off = interface == Some(Interface::Fileio);
        Self { endpoints, interface, dmabufs: HashMap::new(), landing: HashMap::new(), is_off }
    }

    /// The block of samples if the controller can take `total` bytes of it in place.
    pub(in crate::stream::usb) fn attached<'a>(
        &mut self,
        samples: &'a Samples,
        total: usize,
    ) -> io::Result<Option<&'a Block>> {
        let attached = self.try_attach(samples, total);
        match (attached, self.interface) {
            (Ok(block), _) => Ok(Some(block)),
            (Err(errno), Some(Interface::Dmabuf)) => Err(refused(errno)),
            (Err(_), _) => Ok(None),
        }
    }

    fn try_attach<'a>(&mut self, samples: &'a Samples, total: usize) -> Result<&'a Block, Errno> {
        let is_short = total < IN_PLACE && self.interface.is_none();
        let place = samples.block().zip(samples.kin());
        let (block, home) = place.filter(|_| !self.is_off && !is_short).ok_or(Errno::OPNOTSUPP)?;
        if !block.is_dmabuf() || block.len() < total {
            return Err(Errno::OPNOTSUPP);
        }
        let inode = rustix::fs::fstat(block)?.st_ino;
        if self.dmabufs.contains_key(&inode) {
            return Ok(block);
        }
        // Those of sources that are gone stay attached until the connection ends.
        self.dmabufs.retain(|_, (_, home)| home.strong_count() > 0);
        let dmabuf = block.as_fd().try_clone_to_owned().map_err(|_| Errno::MFILE)?;
        match persist(|| functionfs::attach(&self.endpoints.to, block)) {
            Ok(()) => {}
            Err(errno) => {
                self.is_off = errno == Errno::PERM || errno == Errno::NOTTY;
                return Err(errno);
            }
        }
        self.dmabufs.insert(inode, (dmabuf, home));
        Ok(block)
    }

    /// Queues the first `total` bytes of an attached block; `false` if the kernel does not take it now.
    pub(in crate::stream::usb) fn send(&self, block: &Block, total: usize) -> io::Result<bool> {
        match persist(|| functionfs::transfer(&self.endpoints.to, block, total as u64)) {
            Ok(()) => Ok(true),
            Err(Errno::BUSY | Errno::NOMEM) => Ok(false),
            // It was attached: the function has no controller any more.
            Err(Errno::PERM) => Err(broken(Errno::SHUTDOWN)),
            Err(errno) => Err(broken(errno)),
        }
    }

    /// Whether the controller can fill blocks such as this one, with `total` bytes.
    pub(super) fn can_land(&mut self, block: &Block, total: usize) -> io::Result<bool> {
        match (self.attach_landing(block, total), self.interface) {
            (Ok(()), _) => Ok(true),
            (Err(errno), Some(Interface::Dmabuf)) => Err(refused(errno)),
            (Err(_), _) => Ok(false),
        }
    }

    fn attach_landing(&mut self, block: &Block, total: usize) -> Result<(), Errno> {
        let is_short = total < IN_PLACE && self.interface.is_none();
        if self.is_off || is_short || !block.is_dmabuf() || block.len() < total {
            return Err(Errno::OPNOTSUPP);
        }
        let inode = rustix::fs::fstat(block)?.st_ino;
        if self.landing.contains_key(&inode) {
            return Ok(());
        }
        let dmabuf = block.as_fd().try_clone_to_owned().map_err(|_| Errno::MFILE)?;
        persist(|| functionfs::attach(&self.endpoints.from, block))?;
        self.landing.insert(inode, dmabuf);
        Ok(())
    }

    /// Has a block filled with `total` bytes; returns a fence, for the result.
    pub(super) fn land(&mut self, block: &Block, total: usize) -> Result<OwnedFd, Errno> {
        self.attach_landing(block, total)?;
        persist(|| functionfs::transfer(&self.endpoints.from, block, total as u64))?;
        dmabuf::export_sync_file(block, Access::Read)
    }
}

fn refused(errno: Errno) -> io::Error {
    let why = format!("the controller does not take a block in place: {errno}");
    io::Error::new(ErrorKind::Unsupported, why)
}
