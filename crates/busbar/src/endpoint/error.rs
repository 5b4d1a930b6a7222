//! What the error numbers of the rpmsg drivers mean here.

use busbar_uapi::rpmsg::{ADDR_ANY, EndpointInfo};
use rustix::io::Errno;

use crate::Error;

/// `ERESTARTSYS`, which the in-tree driver returns to user space after 15 s without a free buffer.
pub(super) const AGAIN_IN_KERNEL: Errno = Errno::from_raw_os_error(512);

/// The error with advice.
pub(super) fn failed(tried: &str, on: impl Into<String>, errno: Errno) -> Error {
    let errno = if is_gone(errno) { Errno::PIPE } else { errno };
    let error = Error::new(tried, on, errno);
    match help(errno) {
        Some(help) => error.help(help),
        None => error,
    }
}

/// Whether the number means that the remote, or the device behind the file, is gone.
pub(super) fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::PIPE | Errno::NODEV | Errno::NXIO | Errno::NETRESET)
}

/// The in-tree driver returns `EINVAL` if another endpoint has the address.
pub(super) fn address_in_use(info: &EndpointInfo, errno: Errno) -> Errno {
    match errno {
        Errno::INVAL | Errno::BUSY if info.src != ADDR_ANY => Errno::ADDRINUSE,
        errno => errno,
    }
}

fn help(errno: Errno) -> Option<&'static str> {
    Some(match errno {
        Errno::PIPE => {
            "the coprocessor stopped or crashed, or the endpoint was destroyed: \
             open the controller and create the endpoint again once the coprocessor runs"
        }
        Errno::MSGSIZE => "a message on the virtio bus holds 0 to 496 bytes",
        Errno::NOBUFS => "messages were lost because they were not read in time: read faster",
        Errno::ADDRINUSE => "choose another source address, or none for a free one",
        Errno::OPNOTSUPP => "this bus or its driver does not support that",
        Errno::INVAL => "an endpoint without a destination address can only receive",
        Errno::NOTTY => "is this an rpmsg control device, such as /dev/rpmsg_ctrl0?",
        Errno::ACCESS | Errno::PERM => "ask for access by a udev rule, or run as root",
        Errno::MFILE => "raise the limit of open files, `ulimit -n`",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn a_remote_that_is_gone_is_a_broken_pipe_whatever_the_number() {
        for errno in [Errno::PIPE, Errno::NODEV, Errno::NXIO, Errno::NETRESET] {
            let error = failed("send to", "endpoint `echo`", errno);
            assert_eq!(error.kind(), ErrorKind::BrokenPipe);
            assert!(error.to_string().contains("the coprocessor stopped or crashed"), "{error}");
        }
    }

    #[test]
    fn an_error_says_what_was_tried_on_what_and_what_to_do() {
        let error = failed("send to", "endpoint `echo`", Errno::MSGSIZE);
        let text = error.to_string();
        assert!(text.starts_with("cannot send to endpoint `echo`: "), "{text}");
        assert!(text.ends_with("(a message on the virtio bus holds 0 to 496 bytes)"), "{text}");
        assert_eq!(error.errno(), Some(Errno::MSGSIZE));
    }
}
