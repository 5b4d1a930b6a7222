//! What to wait for.

use std::fmt;
use std::ops::BitOr;

use busbar_uapi::epoll;

/// What to wait for on a descriptor, and how it is reported.
///
/// Errors and hang-up are always reported. Without [`edge`](Self::edge) or
/// [`one_shot`](Self::one_shot) it is level-triggered: each wait reports a state as long as it lasts.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Interest(u32);

impl Interest {
    /// Nothing but errors and hang-up.
    pub const NONE: Self = Self(0);
    /// There is something to read (`EPOLLIN`).
    pub const READABLE: Self = Self(epoll::IN);
    /// There is room to write (`EPOLLOUT`).
    pub const WRITABLE: Self = Self(epoll::OUT);
    /// There is urgent data (`EPOLLPRI`).
    pub const PRIORITY: Self = Self(epoll::PRI);
    /// The peer has stopped sending (`EPOLLRDHUP`).
    pub const READ_HANGUP: Self = Self(epoll::RDHUP);

    /// Edge-triggered: reports changes of state, such as the arrival of data, once each (`EPOLLET`).
    #[must_use]
    pub const fn edge(self) -> Self {
        Self(self.0 | epoll::ET)
    }

    /// Reports once, then nothing until the next change of the interest (`EPOLLONESHOT`).
    #[must_use]
    pub const fn one_shot(self) -> Self {
        Self(self.0 | epoll::ONESHOT)
    }

    /// If many pollers wait for one file, wakes at least one of them, not all (`EPOLLEXCLUSIVE`).
    ///
    /// The kernel accepts it only with readable, writable and edge, and cannot change it afterwards:
    /// remove and add the descriptor instead.
    #[must_use]
    pub const fn exclusive(self) -> Self {
        Self(self.0 | epoll::EXCLUSIVE)
    }

    pub(super) const fn bits(self) -> u32 {
        self.0
    }
}

impl BitOr for Interest {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for Interest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Interest({})", Bits(self.0))
    }
}

/// The names of a set of bits.
pub(super) struct Bits(pub(super) u32);

impl fmt::Display for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [(u32, &str); 9] = [
            (epoll::IN, "readable"),
            (epoll::OUT, "writable"),
            (epoll::PRI, "priority"),
            (epoll::RDHUP, "read hang-up"),
            (epoll::HUP, "hang-up"),
            (epoll::ERR, "failure"),
            (epoll::ET, "edge"),
            (epoll::ONESHOT, "one shot"),
            (epoll::EXCLUSIVE, "exclusive"),
        ];
        let names = NAMES.iter().filter(|(bit, _)| self.0 & bit != 0).map(|(_, name)| *name);
        f.write_str(&names.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interests_add_up_and_say_so() {
        let interest = (Interest::READABLE | Interest::PRIORITY).edge().one_shot();
        assert_eq!(interest.bits(), epoll::IN | epoll::PRI | epoll::ET | epoll::ONESHOT);
        assert_eq!(format!("{interest:?}"), "Interest(readable, priority, edge, one shot)");
    }
}
