//! A network device with queues that are bound to a block.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use super::ethtool::{Device, Split};
use super::netdev::{Netdev, Queue};
use super::rule::{Rules, Steering};
use super::settings::Settings;
use super::{Offer, Queues, ReceiveSetup, Tokens};
use crate::block::Block;
use crate::{Error, Result};

/// Minimum number of pages of a block: for frames of 64 KiB, and twice that for frames out of order.
const LEAST_PAGES: usize = 64;

/// The binding and everything that it needs. Fields are dropped, and so undone, from the first to the last.
#[derive(Debug)]
pub(super) struct Nic {
    rules: Rules,
    netdev: Mutex<Netdev>,
    settings: Settings,
    device: Arc<Device>,
    /// Number of the binding.
    pub(super) id: u32,
    pub(super) queues: Vec<u32>,
    pub(super) tokens: Tokens,
    /// The next queue to which a connection is steered.
    next: AtomicUsize,
    /// The number of frames that the queues had dropped before.
    dropped: Option<u64>,
}

impl Nic {
    pub(super) fn open(name: &str, block: &Block, setup: &ReceiveSetup) -> Result<Self> {
        check_block(block)?;
        let device = Arc::new(Device::open(name)?);
        // Declared before the socket, so that it is dropped after it: the device refuses to restore its
        // settings while it is bound.
        let mut settings = Settings::new(Arc::clone(&device))?;
        let mut netdev = Netdev::open()?;
        let offer = offer(&mut netdev, &device)?;
        let (tokens, autorelease) = choose_tokens(setup.tokens, offer)?;
        let all = netdev.queues(&device)?;
        let queues = choose_queues(name, &setup.queues, &all)?;
        let is_other = |queue: &&Queue| !queue.is_bound && !queues.contains(&queue.id);
        let others: Vec<_> = all.iter().filter(is_other).map(|queue| queue.id).collect();
        settings.obey_rules()?;
        settings.split_headers()?;
        settings.keep_away(&queues, &others)?;
        let dropped = netdev.dropped(&device, &queues)?;
        let id = netdev.bind(&device, block, &queues, autorelease)?;
        let (netdev, next) = (Mutex::new(netdev), AtomicUsize::new(0));
        let rules = Rules::new(Arc::clone(&device));
        Ok(Self { rules, netdev, settings, device, id, queues, tokens, next, dropped })
    }

    /// The queues that can be bound. This changes nothing.
    pub(super) fn offered(name: &str) -> Result<usize> {
        let device = Device::open(name)?;
        let queues = Netdev::open()?.queues(&device)?;
        let free = queues.iter().filter(|queue| !queue.is_bound).count();
        choose_queues(name, &Queues::Count(1), &queues)?;
        device.rule_table().map_err(|errno| device.failed("find n-tuple rules of", errno))?;
        device
            .indirection()
            .map_err(|errno| device.failed("find a table for receive-side scaling of", errno))?;
        let split = Split::open(&device)?.get().unwrap_or(0);
        if split == 0 {
            return Err(device.failed("find tcp-data-split of", Errno::OPNOTSUPP));
        }
        Ok(free - 1)
    }

    /// Steers connections to these addresses to the next queue.
    pub(super) fn steer(&self, local: &[SocketAddr]) -> Result<Arc<Steering>> {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        let queue = self.queues[next % self.queues.len()];
        self.rules.add(local, queue)
    }

    /// Frames that were dropped since, because memory was short.
    pub(super) fn dropped(&self) -> Result<Option<u64>> {
        let now = self.netdev().dropped(&self.device, &self.queues)?;
        Ok(now.zip(self.dropped).map(|(now, before)| now.saturating_sub(before)))
    }

    /// Undoes everything.
    pub(super) fn close(self) -> Result<()> {
        let Self { rules, netdev, mut settings, .. } = self;
        drop(rules);
        drop(netdev);
        settings.undo()
    }

    fn netdev(&self) -> MutexGuard<'_, Netdev> {
        self.netdev.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the kernel supports; an error if that is nothing.
fn offer(netdev: &mut Netdev, device: &Device) -> Result<Offer> {
    let offer = netdev.offer()?;
    if offer.binds == Some(false) {
        let error = device.failed("bind a block to queues of", Errno::OPNOTSUPP);
        return Err(error.help("the kernel needs CONFIG_NET_DEVMEM, which that of the lab has"));
    }
    Ok(offer)
}

fn check_block(block: &Block) -> Result<()> {
    if !block.is_dmabuf() {
        let allowed = "pages, huge pages, a heap, or a DMABUF that was given";
        return Err(Error::invalid("memory for a network device", block.memory(), allowed));
    }
    let least = LEAST_PAGES * rustix::param::page_size();
    if block.len() < least {
        let allowed = format!("{least} bytes or more");
        return Err(Error::invalid("the length of a block for a device", block.len(), allowed));
    }
    Ok(())
}

/// How tokens are recorded, and the attribute for the kernel, if it needs one.
fn choose_tokens(wanted: Tokens, offer: Offer) -> Result<(Tokens, bool)> {
    match (wanted, offer.has_index_tokens) {
        (Tokens::Default | Tokens::Index, true) => Ok((Tokens::Index, false)),
        (Tokens::Default | Tokens::Autorelease, false) => Ok((Tokens::Autorelease, false)),
        (Tokens::Autorelease, true) => Ok((Tokens::Autorelease, true)),
        (Tokens::Index, false) => {
            let allowed = "default, autorelease: index needs a kernel with Busbar's patches";
            Err(Error::invalid("the tokens", wanted, allowed))
        }
    }
}

/// Queues that are free; at least one is left.
fn choose_queues(device: &str, wanted: &Queues, all: &[Queue]) -> Result<Vec<u32>> {
    let free: Vec<_> = all.iter().filter(|queue| !queue.is_bound).map(|queue| queue.id).collect();
    if free.len() < 2 {
        let why = format!("{} of its {} queues are free", free.len(), all.len());
        let why = std::io::Error::new(std::io::ErrorKind::ResourceBusy, why);
        return Err(Error::new("take a queue of", device, why).help(format!(
            "this needs two, one of them for other connections: `ip link set {device} up`, or \
             `ethtool -L {device} combined 2` for more"
        )));
    }
    match wanted {
        Queues::Count(count) if (1..free.len()).contains(count) => {
            Ok(free[free.len() - count..].to_vec())
        }
        Queues::Count(count) => {
            let allowed =
                format!("1 to {}: one has to remain for other connections", free.len() - 1);
            Err(Error::invalid(format!("the number of queues of {device}"), count, allowed))
        }
        Queues::These(queues) => {
            let mut distinct = queues.clone();
            distinct.sort_unstable();
            distinct.dedup();
            let are_free = distinct.iter().all(|queue| free.contains(queue));
            if are_free && distinct.len() == queues.len() && (1..free.len()).contains(&queues.len())
            {
                return Ok(queues.clone());
            }
            let allowed = format!("some of {free:?}, each once, and not all");
            Err(Error::invalid(format!("the queues of {device}"), format!("{queues:?}"), allowed))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(bound: &[u32]) -> Vec<Queue> {
        (0..4).map(|id| Queue { id, is_bound: bound.contains(&id) }).collect()
    }

    fn choose(wanted: &Queues, bound: &[u32]) -> Result<Vec<u32>, String> {
        choose_queues("nic0", wanted, &queues(bound)).map_err(|error| error.to_string())
    }

    #[test]
    fn the_highest_free_queues_are_taken() {
        assert_eq!(choose(&Queues::Count(1), &[]).unwrap(), [3]);
        assert_eq!(choose(&Queues::Count(3), &[]).unwrap(), [1, 2, 3]);
        assert_eq!(choose(&Queues::Count(2), &[3]).unwrap(), [1, 2]);
        assert_eq!(choose(&Queues::These(vec![2, 0]), &[]).unwrap(), [2, 0]);
    }

    #[test]
    fn one_queue_is_left_and_none_is_taken_from_others() {
        for (wanted, bound, says) in [
            (Queues::Count(0), &[][..], "1 to 3"),
            (Queues::Count(4), &[], "1 to 3"),
            (Queues::Count(1), &[1, 2, 3], "1 of its 4 queues are free"),
            (Queues::These(vec![3]), &[3], "[0, 1, 2]"),
            (Queues::These(vec![4]), &[], "each once"),
            (Queues::These(vec![1, 1]), &[], "each once"),
            (Queues::These(vec![0, 1, 2, 3]), &[], "not all"),
            (Queues::These(vec![]), &[], "each once"),
        ] {
            let error = choose(&wanted, bound).unwrap_err();
            assert!(error.contains(says), "{wanted:?}: {error}");
        }
    }

    #[test]
    fn index_tokens_are_never_taken_for_granted() {
        let choose = |wanted, has_index_tokens| {
            let offer = Offer { binds: Some(true), has_index_tokens };
            choose_tokens(wanted, offer).map_err(|error| error.to_string())
        };
        assert_eq!(choose(Tokens::Default, true), Ok((Tokens::Index, false)));
        assert_eq!(choose(Tokens::Index, true), Ok((Tokens::Index, false)));
        assert_eq!(choose(Tokens::Autorelease, true), Ok((Tokens::Autorelease, true)));
        // A kernel without the attribute would refuse it.
        assert_eq!(choose(Tokens::Default, false), Ok((Tokens::Autorelease, false)));
        assert_eq!(choose(Tokens::Autorelease, false), Ok((Tokens::Autorelease, false)));
        assert!(choose(Tokens::Index, false).unwrap_err().contains("patches"));
    }
}
