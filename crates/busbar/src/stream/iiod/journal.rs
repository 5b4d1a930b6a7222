//! What has happened, for the owner of a server. Whatever clients do, it is a limited number of events.

use std::mem::{Discriminant, discriminant};

use super::peer::{Machine, Peer, Refusal};
use super::server::ServerEvent;
use crate::stream::format::Lost;

/// Most events that are kept until they are taken.
const MOST: usize = 256;
/// How often somebody coming or going is told one by one: of a machine, and of all machines. Further ones are counted, and so
/// are those who are turned away, but for the first one of a machine for each reason.
const OF_MACHINE: usize = 6;
const OF_ALL: usize = 64;
/// Most machines whose connections are counted by themselves.
const MOST_MACHINES: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Journal {
    events: Vec<ServerEvent>,
    /// Connections that are counted, by machine. Those of further machines are the last ones, of none.
    counts: Vec<Count>,
    omitted: u64,
}

#[derive(Debug)]
struct Count {
    machine: Option<Machine>,
    /// How often somebody coming or going was told.
    told: usize,
    /// Why somebody was turned away, each of which was told once.
    reasons: Vec<Discriminant<Refusal>>,
    came: u64,
    gone: u64,
    turned_away: u64,
}

impl Journal {
    /// The events since the last call.
    pub(super) fn take(&mut self) -> Vec<ServerEvent> {
        let mut events = std::mem::take(&mut self.events);
        for Count { machine, came, gone, turned_away, .. } in self.counts.drain(..) {
            if came + gone + turned_away > 0 {
                events.push(ServerEvent::Further { machine, came, gone, turned_away });
            }
        }
        if self.omitted > 0 {
            events.push(ServerEvent::Omitted(std::mem::take(&mut self.omitted)));
        }
        events
    }

    pub(super) fn note(&mut self, event: ServerEvent) {
        if let ServerEvent::Came(peer)
        | ServerEvent::Gone(peer)
        | ServerEvent::TurnedAway(peer, _) = event
        {
            return self.note_peer(peer, event);
        }
        match self.events.iter().position(|known| is_same(known, &event)) {
            Some(known) => add(&mut self.events[known], event),
            None if self.events.len() >= MOST => self.omitted += 1,
            None => self.events.push(event),
        }
    }

    fn note_peer(&mut self, peer: Peer, event: ServerEvent) {
        let told: usize = self.counts.iter().map(|count| count.told).sum();
        let count = self.count(peer.machine());
        let is_told = match event {
            ServerEvent::TurnedAway(_, why) => count.is_new(why),
            _ => count.told < OF_MACHINE && told < OF_ALL,
        };
        if is_told && count.machine.is_some() {
            count.told += usize::from(!matches!(event, ServerEvent::TurnedAway(..)));
            self.events.push(event);
            return;
        }
        match event {
            ServerEvent::Came(_) => count.came += 1,
            ServerEvent::Gone(_) => count.gone += 1,
            _ => count.turned_away += 1,
        }
    }

    fn count(&mut self, machine: Machine) -> &mut Count {
        let known = self.counts.iter().position(|count| count.machine == Some(machine));
        let machine = (self.counts.len() < MOST_MACHINES).then_some(machine);
        let known = known.or_else(|| {
            let is_other = |count: &Count| machine.is_none() && count.machine.is_none();
            self.counts.iter().position(is_other)
        });
        let index = known.unwrap_or(self.counts.len());
        if known.is_none() {
            let reasons = Vec::new();
            self.counts.push(Count { machine, told: 0, reasons, came: 0, gone: 0, turned_away: 0 });
        }
        &mut self.counts[index]
    }
}

impl Count {
    /// Whether nobody of this machine was turned away for this reason before.
    fn is_new(&mut self, why: Refusal) -> bool {
        let why = discriminant(&why);
        let is_new = !self.reasons.contains(&why);
        if is_new {
            self.reasons.push(why);
        }
        is_new
    }
}

/// Whether two events are told as one.
fn is_same(one: &ServerEvent, other: &ServerEvent) -> bool {
    use ServerEvent::{Lost as Samples, LostEvents};
    match (one, other) {
        (Samples { device, host, lost }, Samples { device: of, host: to, lost: more }) => {
            (device, host) == (of, to) && discriminant(lost) == discriminant(more)
        }
        (LostEvents { device, host, .. }, LostEvents { device: of, host: to, .. }) => {
            (device, host) == (of, to)
        }
        _ => one == other,
    }
}

/// Adds what an event counts to one that is the same.
fn add(known: &mut ServerEvent, event: ServerEvent) {
    match (known, event) {
        (
            ServerEvent::Lost { lost: Lost::Samples(before), .. },
            ServerEvent::Lost { lost: Lost::Samples(more), .. },
        ) => *before = before.saturating_add(more),
        (ServerEvent::LostEvents { lost, .. }, ServerEvent::LostEvents { lost: more, .. }) => {
            *lost = lost.saturating_add(more);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(machine: u8, port: u16) -> Peer {
        Peer::Net(([127, 0, 0, machine], port).into())
    }

    /// Connections that came, have gone and were turned away, by all events.
    fn sums(events: &[ServerEvent]) -> (u64, u64, u64) {
        let mut sums = (0, 0, 0);
        for event in events {
            match event {
                ServerEvent::Came(_) => sums.0 += 1,
                ServerEvent::Gone(_) => sums.1 += 1,
                ServerEvent::TurnedAway(..) => sums.2 += 1,
                ServerEvent::Further { came, gone, turned_away, .. } => {
                    sums = (sums.0 + came, sums.1 + gone, sums.2 + turned_away);
                }
                other => panic!("{other:?}"),
            }
        }
        sums
    }

    #[test]
    fn a_few_connections_are_told_one_by_one_and_many_as_sums() {
        let mut journal = Journal::default();
        for port in 1..=3 {
            journal.note(ServerEvent::Came(peer(1, port)));
        }
        assert_eq!(journal.take(), [1, 2, 3].map(|port| ServerEvent::Came(peer(1, port))));
        for port in 1..=1000 {
            for machine in [1, 2] {
                journal.note(ServerEvent::Came(peer(machine, port)));
                journal.note(ServerEvent::Gone(peer(machine, port)));
            }
            journal.note(ServerEvent::TurnedAway(peer(3, port), Refusal::Foreign));
        }
        let events = journal.take();
        assert_eq!((sums(&events), events.len()), ((2000, 2000, 1000), 2 * (OF_MACHINE + 1) + 2));
        assert_eq!(journal.take(), []);
    }

    #[test]
    fn many_machines_are_no_more_events_than_a_few() {
        let mut journal = Journal::default();
        for machine in 0..=255 {
            (0..100).for_each(|port| journal.note(ServerEvent::Came(peer(machine, port))));
        }
        let events = journal.take();
        assert_eq!(sums(&events), (25_600, 0, 0));
        assert!(events.len() <= OF_ALL + MOST_MACHINES + 1, "{}", events.len());
        assert!(events.iter().any(|it| matches!(it, ServerEvent::Further { machine: None, .. })));
    }

    #[test]
    fn the_same_event_is_told_once_and_losses_are_added_up() {
        let mut journal = Journal::default();
        let lost =
            |lost| ServerEvent::Lost { device: "adc".into(), host: peer(1, 1).machine(), lost };
        let failed =
            |error: u32| ServerEvent::Failed { device: "adc".into(), error: error.to_string() };
        for _ in 0..100 {
            journal.note(lost(Lost::Samples(3)));
            journal.note(lost(Lost::Unknown));
            journal.note(failed(0));
        }
        assert_eq!(journal.take(), [lost(Lost::Samples(300)), lost(Lost::Unknown), failed(0)]);
        (0..1000).for_each(|error| journal.note(failed(error)));
        let events = journal.take();
        assert_eq!((events.len(), events.last()), (MOST + 1, Some(&ServerEvent::Omitted(744))));
    }
}
