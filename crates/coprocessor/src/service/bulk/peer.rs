//! The addresses of Linux that use the service.

use busbar::bulk::packet::Joiner;

use super::outgoing::Outgoing;
use super::{Kept, MAX_BLOCK, MAX_KEPT, MAX_PEERS};

/// An address of Linux.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) address: u32,
    pub(super) joiner: Joiner,
    /// The last good block from it.
    pub(super) kept: Option<Kept>,
    pub(super) outgoing: Outgoing,
    /// Time of the last message; greater than that of addresses that have been silent for longer.
    used: u64,
}

impl Peer {
    fn kept_size(&self) -> u64 {
        self.kept.as_ref().map_or(0, |kept| kept.bytes.len() as u64)
    }
}

/// All known addresses.
#[derive(Debug, Default)]
pub(super) struct Peers {
    known: Vec<Peer>,
    /// Calls of [`Self::get`].
    uses: u64,
    /// Index of the address that is first the next time.
    turn: usize,
    /// Index of the address that was used last.
    recent: usize,
}

impl Peers {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.known.iter()
    }

    pub(super) fn find(&self, address: u32) -> Option<&Peer> {
        self.known.iter().find(|peer| peer.address == address)
    }

    /// All addresses, beginning with another one each time.
    pub(super) fn in_turn(&mut self) -> impl Iterator<Item = &mut Peer> {
        self.turn = (self.turn + 1).checked_rem(self.known.len()).unwrap_or(0);
        let (before, behind) = self.known.split_at_mut(self.turn);
        behind.iter_mut().chain(before)
    }

    /// The entry of `address`, created if there is none.
    pub(super) fn get(&mut self, address: u32) -> &mut Peer {
        let is_it = |peer: &Peer| peer.address == address;
        let at = match self.known.get(self.recent) {
            Some(peer) if is_it(peer) => self.recent,
            _ => self.known.iter().position(is_it).unwrap_or_else(|| self.add(address)),
        };
        self.recent = at;
        self.uses += 1;
        let peer = &mut self.known[at];
        peer.used = self.uses;
        peer
    }

    fn add(&mut self, address: u32) -> usize {
        if self.known.len() == MAX_PEERS
            && let Some(oldest) = (0..MAX_PEERS).min_by_key(|at| self.known[*at].used)
        {
            self.known.swap_remove(oldest);
        }
        let (joiner, outgoing) = (Joiner::new(MAX_BLOCK), Outgoing::default());
        self.known.push(Peer { address, joiner, kept: None, outgoing, used: 0 });
        self.known.len() - 1
    }

    pub(super) fn forget(&mut self, address: u32) {
        self.known.retain(|peer| peer.address != address);
    }

    /// Keeps a block of `address`; drops others if there are too many.
    pub(super) fn keep(&mut self, address: u32, block: Kept) {
        self.get(address).kept = Some(block);
        while self.known.iter().map(Peer::kept_size).sum::<u64>() > MAX_KEPT {
            let keeps = self.known.iter_mut().filter(|peer| peer.kept_size() > 0);
            let Some(oldest) = keeps.min_by_key(|peer| peer.used) else { break };
            oldest.kept = None;
        }
    }
}
