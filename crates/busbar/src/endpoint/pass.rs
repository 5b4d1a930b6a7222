//! Passing endpoints to another process.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;

use busbar_uapi::rpmsg::NAME_SIZE;
use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::{Endpoint, Label};
use crate::{Error, Result};

/// Version, whether a device node goes with the endpoint, name, destination.
const PARCEL: usize = 2 + NAME_SIZE + 4;
const VERSION: u8 = 1;
const TRIED: &str = "pass";
const ON: &str = "an endpoint to another process";

impl Endpoint {
    /// Passes the endpoint to the process at the other end of `socket`, which takes it by
    /// [`receive_from_process`](Self::receive_from_process).
    ///
    /// It belongs to the other process from then on. To share it instead, let the other process inherit a
    /// copy of the descriptor, and keep the endpoint as long as it is needed: dropping it destroys a
    /// device node.
    ///
    /// # Errors
    ///
    /// Those of the socket; the endpoint is closed then.
    pub fn send_to_process(self, socket: &UnixStream) -> Result<()> {
        let parcel = encode(self.node, &self.label);
        send(socket, &self, &parcel).map_err(|error| Error::new(TRIED, ON, error))?;
        // This closes it without destroying its device node.
        drop(OwnedFd::from(self));
        Ok(())
    }

    /// Waits for the endpoint that the process at the other end of `socket` sends by
    /// [`send_to_process`](Self::send_to_process).
    ///
    /// # Errors
    ///
    /// Those of the socket, [`UnexpectedEof`](std::io::ErrorKind::UnexpectedEof) if the other process has
    /// closed it, [`InvalidData`](std::io::ErrorKind::InvalidData) if the data is not an endpoint.
    pub fn receive_from_process(socket: &UnixStream) -> Result<Self> {
        receive(socket)
            .map_err(|error| Error::new("take", "an endpoint from another process", error))
    }
}

fn send(mut socket: &UnixStream, endpoint: &Endpoint, parcel: &[u8]) -> std::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [endpoint.as_fd()];
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(Errno::NOBUFS.into());
    }
    let parts = [IoSlice::new(parcel)];
    let sent = loop {
        match sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            done => break done?,
        }
    };
    // The descriptor travels with the first byte.
    socket.write_all(&parcel[sent..])
}

fn receive(mut socket: &UnixStream) -> std::io::Result<Endpoint> {
    let mut parcel = [0; PARCEL];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = loop {
        let mut parts = [IoSliceMut::new(&mut parcel)];
        match recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            done => break done?,
        }
    };
    // Descriptors that are not expected are closed when they are dropped.
    let fds: Vec<_> = control.drain().flat_map(descriptors).collect();
    if message.bytes == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    socket.read_exact(&mut parcel[message.bytes..])?;
    let whole = !message.flags.contains(ReturnFlags::CTRUNC);
    match (<[OwnedFd; 1]>::try_from(fds), decode(&parcel)) {
        (Ok([fd]), Some((node, label))) if whole => {
            Ok(Endpoint::new(fd, node, OnceLock::new(), label))
        }
        _ => {
            Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "the data is not an endpoint"))
        }
    }
}

fn descriptors(message: RecvAncillaryMessage<'_>) -> impl Iterator<Item = OwnedFd> {
    let rights = match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    };
    rights.into_iter().flatten()
}

fn encode(node: bool, label: &Label) -> [u8; PARCEL] {
    let mut parcel = [0; PARCEL];
    parcel[0] = VERSION;
    parcel[1] = u8::from(node);
    parcel[2..2 + NAME_SIZE].copy_from_slice(&label.name);
    parcel[2 + NAME_SIZE..].copy_from_slice(&label.destination.to_le_bytes());
    parcel
}

fn decode(parcel: &[u8; PARCEL]) -> Option<(bool, Label)> {
    let (head, destination) = parcel.split_last_chunk()?;
    let (head, name) = head.split_last_chunk()?;
    let node = match head {
        [VERSION, node @ (0 | 1)] => *node == 1,
        _ => return None,
    };
    Some((node, Label { name: *name, destination: u32::from_le_bytes(*destination) }))
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::os::fd::AsRawFd;

    use proptest::prelude::*;

    use super::*;

    /// A file that reads and writes whole messages, in place of an endpoint.
    fn pair() -> (Endpoint, OwnedFd) {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let (near, far) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        (Endpoint::from(near), far)
    }

    #[test]
    fn an_endpoint_arrives_with_its_label_and_works() {
        let (mut endpoint, far) = pair();
        endpoint.label.name[..4].copy_from_slice(b"echo");
        endpoint.label.destination = 0x400;
        let label = endpoint.label;
        let (here, there) = UnixStream::pair().unwrap();
        endpoint.send_to_process(&here).unwrap();
        let arrived = Endpoint::receive_from_process(&there).unwrap();
        assert_eq!(arrived.label, label);
        arrived.send(b"through").unwrap();
        let mut buffer = [0; 16];
        assert_eq!(rustix::io::read(&far, &mut buffer).unwrap(), 7);
        let flags = rustix::io::fcntl_getfd(&arrived).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }

    #[test]
    fn the_sender_no_longer_has_it() {
        let (endpoint, far) = pair();
        let (here, there) = UnixStream::pair().unwrap();
        endpoint.send_to_process(&here).unwrap();
        drop(Endpoint::receive_from_process(&there).unwrap());
        let mut buffer = [0; 16];
        assert_eq!(rustix::io::read(&far, &mut buffer).unwrap(), 0, "the other end is closed");
    }

    #[test]
    fn a_closed_socket_and_garbage_are_errors() {
        let (here, there) = UnixStream::pair().unwrap();
        drop(here);
        let error = Endpoint::receive_from_process(&there).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);

        let (mut here, there) = UnixStream::pair().unwrap();
        here.write_all(&[VERSION; PARCEL]).unwrap();
        let error = Endpoint::receive_from_process(&there).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn more_descriptors_than_expected_are_closed_and_an_error() {
        let (endpoint, far) = pair();
        let (here, there) = UnixStream::pair().unwrap();
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [endpoint.as_fd(); 3];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let parcel = encode(false, &endpoint.label);
        sendmsg(&here, &[IoSlice::new(&parcel)], &mut control, SendFlags::empty()).unwrap();
        drop(endpoint);
        let error = Endpoint::receive_from_process(&there).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        let mut buffer = [0; 1];
        assert_eq!(rustix::io::read(&far, &mut buffer).unwrap(), 0, "all copies are closed");
        assert!(far.as_raw_fd() >= 0);
    }

    proptest! {
        #[test]
        fn a_parcel_means_what_was_put_in(node: bool, name: [u8; NAME_SIZE], destination: u32) {
            let label = Label { name, destination };
            prop_assert_eq!(decode(&encode(node, &label)), Some((node, label)));
        }

        #[test]
        fn only_what_encode_makes_is_a_parcel(
            first in any::<[u8; 6]>(), name: [u8; NAME_SIZE],
        ) {
            let mut parcel = [0; PARCEL];
            parcel[..6].copy_from_slice(&first);
            parcel[6..].copy_from_slice(&name);
            if let Some((node, label)) = decode(&parcel) {
                prop_assert_eq!(encode(node, &label), parcel);
            }
        }
    }
}
