//! The same without the cargo feature `dns-sd`.

use std::net::SocketAddr;

use super::ServerEvent;
use crate::{Error, Result};

/// There is none.
#[derive(Debug)]
pub(super) enum Announcement {}

impl Announcement {
    pub(super) fn start(_: SocketAddr) -> Result<Self> {
        let why = std::io::Error::from(std::io::ErrorKind::Unsupported);
        Err(Error::new("announce", "the server", why).help("the cargo feature `dns-sd`"))
    }

    pub(super) fn events(&mut self) -> Vec<ServerEvent> {
        match *self {}
    }
}
