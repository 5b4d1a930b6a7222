//! Another host: a network namespace of its own, connected to this one.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use busbar::{Error, Result};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The device at this end.
pub(crate) const DEVICE: &str = "busbar0";
/// Address of this end.
pub(crate) const HERE: &str = "198.18.57.1";
/// Address of the other end.
pub(crate) const THERE: &str = "198.18.57.2";

const NAMESPACE: &str = "busbar-bench";
/// The device at the other end.
pub(crate) const PEER: &str = "busbar1";
/// Fixed addresses: udev changes random ones, perhaps after the other end has asked for them.
const ADDRESSES: [&str; 2] = ["02:00:00:00:57:01", "02:00:00:00:57:02"];

/// The pair of devices between the two.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Link {
    /// The kernel's own pair.
    Veth,
    /// A pair with device memory.
    Vnic,
}

/// The namespace, which is removed when this is dropped.
pub(crate) struct Elsewhere;

impl Elsewhere {
    pub(crate) fn new(link: Link) -> Result<Self> {
        // A run that was killed may have left it.
        drop(Self);
        let elsewhere = Self;
        ip(&format!("netns add {NAMESPACE}"))?;
        match link {
            Link::Veth => ip(&format!("link add {DEVICE} type veth peer name {PEER}"))?,
            // `ip` cannot name the other end, which gets the next free name.
            Link::Vnic => {
                ip(&format!("link add {DEVICE} address {} type vnic", ADDRESSES[0]))?;
                ip(&format!("link set {} name {PEER} address {}", peer()?, ADDRESSES[1]))?;
            }
        }
        for arguments in [
            format!("link set {PEER} netns {NAMESPACE}"),
            format!("addr add {HERE}/24 dev {DEVICE}"),
            format!("link set {DEVICE} up"),
            format!("-n {NAMESPACE} addr add {THERE}/24 dev {PEER}"),
            format!("-n {NAMESPACE} link set {PEER} up"),
        ] {
            ip(&arguments)?;
        }
        Ok(elsewhere)
    }

    /// Runs `work` in a thread in the namespace, and returns when it is ready.
    pub(crate) fn run<T: Send + 'static>(
        work: impl FnOnce(&mpsc::Sender<()>) -> Result<T> + Send + 'static,
    ) -> Result<JoinHandle<Result<T>>> {
        let (ready, is_ready) = mpsc::channel();
        let thread = thread::spawn(move || {
            enter()?;
            work(&ready)
        });
        match is_ready.recv() {
            Ok(()) => Ok(thread),
            Err(_) => Err(join(thread).map_or_else(|error| error, |_| ended())),
        }
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let quietly = |arguments: &[&str]| Command::new("ip").args(arguments).output();
        let _ = quietly(&["link", "del", DEVICE]);
        let _ = quietly(&["netns", "del", NAMESPACE]);
    }
}

/// The other end of [`DEVICE`], while it is here.
fn peer() -> Result<String> {
    let said = ip_says(&format!("-o link show {DEVICE}"))?;
    let name = said.split_once('@').and_then(|(_, rest)| rest.split_once(':'));
    let unknown = || Error::invalid("output of ip for the pair", said.trim(), "NAME@PEER: …");
    name.map(|(name, _)| name.to_string()).ok_or_else(unknown)
}

fn ip(arguments: &str) -> Result<()> {
    ip_says(arguments).map(drop)
}

fn ip_says(arguments: &str) -> Result<String> {
    let failed = |why| Error::new("run", format!("ip {arguments}"), why).help("as root, iproute2");
    let output = Command::new("ip").args(arguments.split(' ')).output().map_err(failed)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(failed(std::io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_string())))
}

/// Moves this thread there.
pub(crate) fn enter() -> Result<()> {
    let path = format!("/run/netns/{NAMESPACE}");
    let failed = |why| Error::new("enter", path.clone(), why);
    let namespace = File::open(&path).map_err(failed)?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|errno| failed(errno.into()))
}

pub(crate) fn join<T>(thread: JoinHandle<Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|_| Err(ended()))
}

fn ended() -> Error {
    Error::new("run", "a thread", std::io::Error::other("it has ended"))
}
