//! Endpoints that are device nodes: made by one call, then found, waited for and opened.
//!
//! `RPMSG_CREATE_EPT_IOCTL` does not return which node it has made. So this looks for a node that was
//! not there before and has the same name and addresses. A lock on the control device, held until the
//! node is open, makes users of this library take turns, so none takes the node of another. A node can be
//! opened only once: if some other program takes ours for its own, then its node, which has the same name
//! and addresses, is left for us.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use busbar_uapi::rpmsg::{self, ADDR_ANY, EndpointInfo};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use super::controller::Controller;
use super::error::{address_in_use, failed};
use super::sysfs::{ControlDevice, Identity, Node};
use crate::poll::Deadline;
use crate::{Error, Result};

/// Pause between two attempts while another process has to act.
const PAUSE: Duration = Duration::from_millis(1);

/// Makes a node and opens it.
pub(super) fn create(
    controller: &Controller,
    info: &EndpointInfo,
    deadline: Deadline,
) -> Result<OwnedFd> {
    let device = controller.device()?;
    let on = describe(controller, info);
    let turn = lock(controller, deadline).map_err(|errno| turn_failed(&on, errno))?;
    let before = look(&device, info.src).map_err(|errno| failed("make", &on, errno))?;
    rpmsg::create_ept(controller, *info).map_err(|errno| failed("make", &on, errno))?;
    let search = Search { device: &device, before: &before, info };
    let opened = search.open(deadline);
    // This frees a descriptor, which may be the one that was missing.
    drop(turn);
    opened.map_err(|errno| search.undo(&on, errno))
}

fn describe(controller: &Controller, info: &EndpointInfo) -> String {
    let name = String::from_utf8_lossy(&info.name);
    format!("endpoint `{}` on {}", name.trim_end_matches('\0'), controller.label())
}

/// The lock needs an open file of its own: threads and forked children share that of the
/// controller.
fn lock(controller: &Controller, deadline: Deadline) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", controller.as_fd().as_raw_fd());
    let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::AGAIN) if deadline.has_passed() => return Err(Errno::TIMEDOUT),
            Err(Errno::AGAIN) => thread::sleep(PAUSE),
            Err(Errno::INTR) => {}
            done => return done.map(|()| file),
        }
    }
}

fn turn_failed(on: &str, errno: Errno) -> Error {
    let error = failed("wait for the turn to make", on, errno);
    match errno {
        Errno::TIMEDOUT => {
            error.help("another process is creating a device node, or was stopped while it did")
        }
        _ => error,
    }
}

/// The nodes that exist already; `EADDRINUSE` if another endpoint has this address.
fn look(device: &ControlDevice, source: u32) -> Result<HashSet<Identity>, Errno> {
    if source != ADDR_ANY && is_taken(device, source).map_err(|error| errno_of(&error))? {
        return Err(Errno::ADDRINUSE);
    }
    device.identities().map_err(|error| errno_of(&error))
}

/// This is checked before a node is made: one whose address is in use cannot be opened, and so cannot
/// be destroyed.
fn is_taken(device: &ControlDevice, source: u32) -> io::Result<bool> {
    if device.has_driver_at(source)? {
        return Ok(true);
    }
    let nodes = device.nodes(&HashSet::new())?;
    let mut same = nodes.iter().filter(|node| node.source == source);
    Ok(same.any(|node| matches!(open(node), Err(Errno::BUSY | Errno::INVAL))))
}

fn path(node: &Node) -> PathBuf {
    Path::new("/dev").join(&node.identity.file)
}

/// Opens the file of this node; `ENOENT` while there is none or it belongs to another device.
fn open(node: &Node) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::stat(path(node))?;
    let number = format!("{}:{}", rustix::fs::major(file.st_rdev), rustix::fs::minor(file.st_rdev));
    if number != node.number {
        return Err(Errno::NOENT);
    }
    rustix::fs::open(path(node), flags, Mode::empty())
}

struct Search<'a> {
    device: &'a ControlDevice,
    before: &'a HashSet<Identity>,
    info: &'a EndpointInfo,
}

impl Search<'_> {
    /// Opens a node like the one that was made. Waits until udev has made and released its file.
    fn open(&self, deadline: Deadline) -> Result<OwnedFd, Errno> {
        loop {
            match self.open_one() {
                Err(errno) if !may_change(errno) => return Err(address_in_use(self.info, errno)),
                Err(errno) if deadline.has_passed() => {
                    return Err(if errno == Errno::NOENT { Errno::TIMEDOUT } else { errno });
                }
                Err(_) => thread::sleep(PAUSE),
                Ok(fd) => return Ok(fd),
            }
        }
    }

    fn open_one(&self) -> Result<OwnedFd, Errno> {
        let mut last = Errno::PIPE;
        for node in self.candidates()? {
            match open(&node) {
                // It may have been replaced by one with the same number before it was opened, but not since.
                Ok(fd) if self.is_still(&node)? => return Ok(fd),
                Ok(_) => last = Errno::BUSY,
                Err(errno) => last = errno,
            }
        }
        Err(last)
    }

    fn candidates(&self) -> Result<Vec<Node>, Errno> {
        let nodes = self.device.nodes(self.before).map_err(|error| errno_of(&error))?;
        Ok(nodes.into_iter().filter(|node| self.is_like_ours(node)).collect())
    }

    fn is_like_ours(&self, node: &Node) -> bool {
        let name = String::from_utf8_lossy(&self.info.name);
        node.name == name.trim_end_matches('\0')
            && (node.source, node.destination) == (self.info.src, self.info.dst)
    }

    fn is_still(&self, node: &Node) -> Result<bool, Errno> {
        let now = self.device.node(&node.identity).map_err(|error| errno_of(&error))?;
        // Its source may differ: rpmsg_eptfd shows the address that an open node has.
        Ok(now.is_some_and(|now| now.identity == node.identity && now.number == node.number))
    }

    /// Destroys the node that could not be opened, or reports that it is left.
    fn undo(&self, on: &str, errno: Errno) -> Error {
        let error = failed("open the device node of", on, errno);
        let Ok(mut left) = self.candidates() else {
            return error.help("a device node of this name may be left");
        };
        // Another program may have made one like it: destroy only one.
        if left.iter().any(destroyed) {
            return error;
        }
        left.retain(|node| !matches!(open(node), Err(Errno::BUSY)));
        let left: Vec<_> = left.iter().map(|node| path(node).display().to_string()).collect();
        match (left.join(", ").as_str(), errno) {
            ("", _) => error,
            (left, Errno::TIMEDOUT) => {
                error.help(format!("no file {left} has appeared: devtmpfs or udev has to make it"))
            }
            (left, _) => error.help(format!(
                "{left} is left: give yourself access by a udev rule, or open it and destroy it \
                 by RPMSG_DESTROY_EPT_IOCTL"
            )),
        }
    }
}

/// Whether udev, or a program that looks at the same node, may still change this.
fn may_change(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::ACCESS | Errno::PERM | Errno::BUSY)
}

fn destroyed(node: &Node) -> bool {
    open(node).and_then(rpmsg::destroy_ept).is_ok()
}

fn errno_of(error: &io::Error) -> Errno {
    match Errno::from_io_error(error) {
        // The control device has left sysfs.
        Some(Errno::NOENT) | None => Errno::PIPE,
        Some(errno) => errno,
    }
}
