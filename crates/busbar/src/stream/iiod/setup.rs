//! How a server is opened.

use std::time::Duration;

#[cfg(feature = "usb")]
use crate::stream::usb::Gadget;

/// How a [`Server`](super::Server) is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerSetup {
    /// `[ADDRESS:]PORT`; without an address, all addresses of this machine, IPv4 and IPv6.
    pub listen: String,
    /// `iio:NAME`, `[NAME=]synth:PATTERN`, `[NAME=]file:NAME`. Empty: the IIO devices of this machine, also those that come
    /// later.
    pub devices: Vec<String>,
    /// Whether it waits for a device to come if there is none and none was named. If not, opening it fails.
    pub wait: bool,
    /// Whether clients may only read.
    pub read_only: bool,
    /// Most clients at a time. A program has a connection for the context, and one for each device that it has
    /// opened. An eighth of them is for machines that have none yet. If there is no place, the connection that has been
    /// idle for the longest time is closed, of the machine with most connections, unless the new one is of a machine that
    /// has about as many.
    pub clients: usize,
    /// How long a client may be silent, 5 s to a day: while it does not answer the kernel, takes nothing of what it was sent,
    /// owes its first command or the rest of one. And how long a driver may take for an attribute, which then fails with
    /// `ETIMEDOUT`. A client that waits for nothing may be silent for ever.
    pub silence: Duration,
    /// Bytes that all blocks together may take.
    pub memory_limit: usize,
    /// Whether it is announced on the local network by DNS-SD, as `_iio._tcp`. Needs the cargo feature `dns-sd`.
    pub announce: bool,
    /// Serves a USB host as well, as this device. Needs the cargo feature `usb`.
    #[cfg(feature = "usb")]
    pub usb: Option<Gadget>,
    /// Clients of the USB host at a time, 1 to 7: pairs of endpoints that the function has. A program has one for the
    /// context, and one for each device that it has opened.
    #[cfg(feature = "usb")]
    pub usb_pipes: u8,
}

impl Default for ServerSetup {
    fn default() -> Self {
        Self {
            listen: super::PORT.to_string(),
            devices: Vec::new(),
            wait: false,
            read_only: false,
            clients: 64,
            silence: super::SILENCE,
            memory_limit: 256 << 20,
            announce: false,
            #[cfg(feature = "usb")]
            usb: None,
            #[cfg(feature = "usb")]
            usb_pipes: 3,
        }
    }
}

impl ServerSetup {
    /// The IIO devices of this machine on port 30431.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`listen`](Self#structfield.listen).
    #[must_use]
    pub fn listen(mut self, listen: impl Into<String>) -> Self {
        self.listen = listen.into();
        self
    }

    /// Sets [`devices`](Self#structfield.devices).
    #[must_use]
    pub fn devices<T: Into<String>>(mut self, devices: impl IntoIterator<Item = T>) -> Self {
        self.devices = devices.into_iter().map(Into::into).collect();
        self
    }

    /// Sets [`wait`](Self#structfield.wait).
    #[must_use]
    pub fn wait(mut self, wait: bool) -> Self {
        self.wait = wait;
        self
    }

    /// Sets [`silence`](Self#structfield.silence).
    #[must_use]
    pub fn silence(mut self, silence: Duration) -> Self {
        self.silence = silence;
        self
    }

    /// Sets [`read_only`](Self#structfield.read_only).
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Sets [`clients`](Self#structfield.clients).
    #[must_use]
    pub fn clients(mut self, clients: usize) -> Self {
        self.clients = clients;
        self
    }

    /// Sets [`memory_limit`](Self#structfield.memory_limit).
    #[must_use]
    pub fn memory_limit(mut self, memory_limit: usize) -> Self {
        self.memory_limit = memory_limit;
        self
    }

    /// Sets [`announce`](Self#structfield.announce).
    #[must_use]
    pub fn announce(mut self, announce: bool) -> Self {
        self.announce = announce;
        self
    }

    /// Sets [`usb`](Self#structfield.usb).
    #[cfg(feature = "usb")]
    #[must_use]
    pub fn usb(mut self, gadget: Gadget) -> Self {
        self.usb = Some(gadget);
        self
    }

    /// Sets [`usb_pipes`](Self#structfield.usb_pipes).
    #[cfg(feature = "usb")]
    #[must_use]
    pub fn usb_pipes(mut self, pipes: u8) -> Self {
        self.usb_pipes = pipes;
        self
    }
}
