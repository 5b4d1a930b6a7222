//! What a server says of itself on one network: RFC 6762, sections 6 to 10. It keeps nothing of what others say, so they
//! cannot fill its memory.

use crate::poll::later;
use std::cmp::Ordering;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::wire::{
    A, AAAA, ANY, Data, Message, Name, PTR, Record, SRV, TXT, Writer, name_data, service_data,
};

/// Seconds for which a record is valid: with an address in it, and others; and for who does not hear changes.
const SHORT: u32 = 120;
const LONG: u32 = 4500;
const BRIEF: u32 = 10;
/// How often the name is asked for before it is used, and how long each time is.
const PROBES: u8 = 3;
const PROBE: Duration = Duration::from_millis(250);
/// How often it is announced then.
const ANNOUNCEMENTS: u8 = 2;
/// The least time between two answers to all.
const PAUSE: Duration = Duration::from_secs(1);
/// How long an answer waits for others that it may be joined with, and a random time more.
const DELAY: Duration = Duration::from_millis(20);
const DELAY_MORE: Duration = Duration::from_millis(100);
/// How long who has lost a name at the same time waits.
const LOST: Duration = Duration::from_secs(1);

const KINDS: &str = "_services._dns-sd._udp.local";

/// The names of a server.
#[derive(Clone, Debug)]
pub(super) struct Names {
    pub(super) kind: Name,
    /// The name of the server, before its kind.
    pub(super) service: Name,
    pub(super) host: Name,
    pub(super) port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// So many times, it has asked whether somebody has the name.
    Probing(u8),
    /// So many times, it has told that the name is its own.
    Announcing(u8),
    Known,
}

/// What comes of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    Nothing,
    /// An answer to the one who has asked.
    Reply(Vec<u8>),
    /// Another one has the name.
    Conflict,
}

/// Who gets an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    All,
    /// All, at the end: it is not valid any more.
    Farewell,
    /// One that asks once, from another port.
    One,
}

#[derive(Debug)]
pub(super) struct Responder {
    pub(super) addresses: Vec<IpAddr>,
    phase: Phase,
    /// When something is to be sent.
    next: Option<Instant>,
    /// When all were told last.
    told: Option<Instant>,
}

impl Responder {
    pub(super) fn new(addresses: Vec<IpAddr>, now: Instant) -> Self {
        let mut new = Self { addresses, phase: Phase::Probing(0), next: None, told: None };
        new.restart(now);
        new
    }

    /// Starts again, with another name or after a while; and a random time more, as others may start with it.
    pub(super) fn restart(&mut self, at: Instant) {
        (self.phase, self.next) = (Phase::Probing(0), Some(later(at, random(PROBE))));
    }

    /// When [`due`](Self::due) has something.
    pub(super) fn next(&self) -> Option<Instant> {
        self.next
    }

    pub(super) fn is_announced(&self) -> bool {
        !matches!(self.phase, Phase::Probing(_))
    }

    /// What is to be sent to all now.
    pub(super) fn due(&mut self, names: &Names, now: Instant) -> Option<Vec<u8>> {
        if self.next.is_none_or(|next| next > now) {
            return None;
        }
        let (phase, wait) = match self.phase {
            Phase::Probing(count @ ..PROBES) => {
                (self.phase, self.next) = (Phase::Probing(count + 1), Some(later(now, PROBE)));
                return Some(self.probe(names));
            }
            Phase::Probing(_) => (Phase::Announcing(1), Some(PAUSE)),
            Phase::Announcing(count @ ..ANNOUNCEMENTS) => {
                let is_last = count + 1 == ANNOUNCEMENTS;
                let phase = if is_last { Phase::Known } else { Phase::Announcing(count + 1) };
                (phase, (!is_last).then_some(PAUSE))
            }
            Phase::Announcing(_) | Phase::Known => (Phase::Known, None),
        };
        (self.phase, self.next, self.told) = (phase, wait.map(|wait| later(now, wait)), Some(now));
        Some(self.answer(names, Writer::answer(0), To::All))
    }

    /// A question for the names, with what they are to be.
    fn probe(&self, names: &Names) -> Vec<u8> {
        let mut writer = Writer::query();
        writer.question(&names.service, ANY);
        writer.question(&names.host, ANY);
        let service = service_data(names.port, &names.host);
        writer.record(2, (&names.service, SRV, false), SHORT, &service);
        for address in &self.addresses {
            let (kind, data) = address_data(*address);
            writer.record(2, (&names.host, kind, false), SHORT, &data);
        }
        writer.finish()
    }

    /// All that there is to say.
    fn answer(&self, names: &Names, mut writer: Writer, to: To) -> Vec<u8> {
        let (short, long) = match to {
            To::All => (SHORT, LONG),
            To::Farewell => (0, 0),
            To::One => (BRIEF, BRIEF),
        };
        // One that asks once knows nothing of records that are out of date.
        let is_only = to != To::One;
        writer.record(1, (&names.kind, PTR, false), long, &name_data(&names.service));
        let service = service_data(names.port, &names.host);
        writer.record(1, (&names.service, SRV, is_only), short, &service);
        // An empty text.
        writer.record(1, (&names.service, TXT, is_only), long, &[0]);
        for address in &self.addresses {
            let (kind, data) = address_data(*address);
            writer.record(1, (&names.host, kind, is_only), short, &data);
        }
        // There may be other servers, so this is not taken back.
        if to != To::Farewell {
            writer.record(1, (&Name::of(KINDS), PTR, false), long, &name_data(&names.kind));
        }
        writer.finish()
    }

    /// What all are told at the end.
    pub(super) fn farewell(&self, names: &Names) -> Option<Vec<u8>> {
        self.is_announced().then(|| self.answer(names, Writer::answer(0), To::Farewell))
    }

    /// What a neighbour has sent. `is_peer`: from the port of multicast DNS, so it hears what is sent to all.
    pub(super) fn hear(
        &mut self,
        names: &Names,
        message: &Message,
        is_peer: bool,
        own: &[IpAddr],
        now: Instant,
    ) -> Heard {
        if message.is_answer && !is_peer {
            // Answers to all come from that port only (RFC 6762, 6).
            return Heard::Nothing;
        }
        if message.is_answer {
            let is_conflict = message.records.iter().any(|it| names.is_conflict(it, own));
            return match self.phase {
                _ if !is_conflict => Heard::Nothing,
                Phase::Probing(0) => Heard::Nothing,
                Phase::Probing(_) => Heard::Conflict,
                // Both ask again; who is not answered keeps the name.
                _ => {
                    self.restart(later(now, LOST));
                    Heard::Nothing
                }
            };
        }
        if let Phase::Probing(_) = self.phase {
            if names.is_lost(message, &self.addresses, own) {
                self.restart(later(now, LOST));
            }
            return Heard::Nothing;
        }
        let asked = message.questions.iter().find(|it| names.is_asked(&it.name, it.kind));
        let Some(question) = asked.filter(|_| !names.is_known(message)) else {
            return Heard::Nothing;
        };
        if !is_peer {
            let mut writer = Writer::answer(message.id);
            writer.question(&question.name, question.kind);
            return Heard::Reply(self.answer(names, writer, To::One));
        }
        // Who probes has to be answered at once.
        let is_probe = question.kind == ANY && !message.records.is_empty();
        let pause = if is_probe { PROBE } else { PAUSE };
        let at = later(
            now,
            if is_probe { Duration::ZERO } else { DELAY.saturating_add(random(DELAY_MORE)) },
        );
        let at = self.told.map_or(at, |told| at.max(later(told, pause)));
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
        Heard::Nothing
    }
}

impl Names {
    fn is_asked(&self, name: &Name, kind: u16) -> bool {
        let any_of = |kinds: &[u16]| kind == ANY || kinds.contains(&kind);
        (*name == self.kind && any_of(&[PTR]))
            || (*name == self.service && any_of(&[SRV, TXT]))
            || (*name == self.host && any_of(&[A, AAAA]))
            || (*name == Name::of(KINDS) && any_of(&[PTR]))
    }

    /// Whether who asks knows the answer, for long enough.
    fn is_known(&self, message: &Message) -> bool {
        let is_only = message
            .questions
            .iter()
            .all(|it| it.name == self.kind || !self.is_asked(&it.name, it.kind));
        let data = Data::Name(self.service.clone());
        let is_known = |it: &Record| it.name == self.kind && it.data == data && it.ttl > LONG / 2;
        is_only && message.records.iter().any(is_known)
    }

    /// Whether a record gives one of the names to something else.
    fn is_conflict(&self, record: &Record, own: &[IpAddr]) -> bool {
        if record.ttl == 0 {
            return false;
        }
        match &record.data {
            Data::Service { port, host } => {
                record.name == self.service && (*port != self.port || *host != self.host)
            }
            Data::Address(address) => record.name == self.host && !own.contains(address),
            _ => false,
        }
    }

    /// Whether another one who probes for the names gets them: whose sorted records are greater (RFC 6762, 8.2).
    /// Addresses of this machine, from another one of its networks, are no reason.
    fn is_lost(&self, message: &Message, addresses: &[IpAddr], own: &[IpAddr]) -> bool {
        let (mut services, mut theirs) = (Vec::new(), Vec::new());
        for record in &message.records {
            match &record.data {
                Data::Service { port, host } if record.name == self.service => {
                    services.push(service_data(*port, host));
                }
                Data::Address(address) if record.name == self.host => theirs.push(*address),
                _ => {}
            }
        }
        services.sort_unstable();
        let by_service = match &*services {
            [] => Ordering::Equal,
            services => services.cmp(&[service_data(self.port, &self.host)]),
        };
        let by_address = || {
            let are_own = theirs.iter().all(|it| own.contains(it));
            if are_own { Ordering::Equal } else { sorted(&theirs).cmp(&sorted(addresses)) }
        };
        by_service.then_with(by_address).is_gt()
    }
}

/// A random time up to this one.
fn random(most: Duration) -> Duration {
    Duration::try_from_secs_f64(most.as_secs_f64() * fastrand::f64()).unwrap_or(most)
}

/// The records of addresses in the order in which they are compared.
fn sorted(addresses: &[IpAddr]) -> Vec<(u16, Vec<u8>)> {
    let mut records: Vec<_> = addresses.iter().copied().map(address_data).collect();
    records.sort_unstable();
    records
}

fn address_data(address: IpAddr) -> (u16, Vec<u8>) {
    match address {
        IpAddr::V4(ip) => (A, ip.octets().to_vec()),
        IpAddr::V6(ip) => (AAAA, ip.octets().to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::parse;
    use super::*;

    const OWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    fn names(port: u16) -> Names {
        let (kind, host) = (Name::of("_iio._tcp.local"), Name::of("vm-iio.local"));
        Names { kind, service: Name::new("busbar on vm", "_iio._tcp.local"), host, port }
    }

    fn hear(responder: &mut Responder, bytes: &[u8], is_peer: bool, now: Instant) -> Heard {
        responder.hear(&names(4000), &parse(bytes).unwrap(), is_peer, &[OWN], now)
    }

    /// One that has the name, and the time then.
    fn known() -> (Responder, Instant) {
        let mut now = Instant::now();
        let mut responder = Responder::new(vec![OWN], now);
        while let Some(next) = responder.next() {
            now = next;
            assert!(responder.due(&names(4000), now).is_some());
        }
        (responder, now)
    }

    fn question(name: &Name, kind: u16) -> Vec<u8> {
        let mut writer = Writer::query();
        writer.question(name, kind);
        writer.finish()
    }

    #[test]
    fn a_name_is_asked_for_three_times_and_told_twice() {
        let now = Instant::now();
        let (mut responder, mut sent) = (Responder::new(vec![OWN], now), Vec::new());
        let start = responder.next().unwrap();
        assert!(start - now <= PROBE);
        while let Some(next) = responder.next() {
            let message = parse(&responder.due(&names(4000), next).unwrap()).unwrap();
            assert!(message.questions.len() == if message.is_answer { 0 } else { 2 });
            sent.push(((next - start).as_millis(), message.is_answer));
            assert_eq!(responder.is_announced(), message.is_answer);
            assert_eq!(responder.farewell(&names(4000)).is_some(), message.is_answer);
        }
        assert_eq!(sent, [(0, false), (250, false), (500, false), (750, true), (1750, true)]);
    }

    #[test]
    fn who_has_the_name_already_keeps_it() {
        let (other, now) = known();
        let answer = |port| other.answer(&names(port), Writer::answer(0), To::All);
        let mut responder = Responder::new(vec![OWN], now);
        let now = responder.next().unwrap();
        responder.due(&names(4000), now).unwrap();
        // Its own answer, as it hears that, too, and the end of another one.
        assert_eq!(hear(&mut responder, &answer(4000), true, now), Heard::Nothing);
        let farewell = other.farewell(&names(4001)).unwrap();
        assert_eq!(hear(&mut responder, &farewell, true, now), Heard::Nothing);
        // One that does not answer from the port of multicast DNS.
        assert_eq!(hear(&mut responder, &answer(4001), false, now), Heard::Nothing);
        assert_eq!(hear(&mut responder, &answer(4001), true, now), Heard::Conflict);
        // One that has it asks again before it gives it up.
        let (mut responder, now) = known();
        assert_eq!(hear(&mut responder, &answer(4001), true, now), Heard::Nothing);
        assert!(!responder.is_announced() && responder.next() >= Some(later(now, LOST)));
    }

    #[test]
    fn of_two_that_ask_at_a_time_one_waits() {
        let [below, above, new] = [[10, 0, 0, 0], [10, 0, 0, 2], [9, 0, 0, 1]].map(IpAddr::from);
        let cases = [
            (4001, vec![below], true),
            (3999, vec![above], false),
            // Its own.
            (4000, vec![OWN], false),
            // The same host and port at another machine.
            (4000, vec![above], true),
            (4000, vec![below], false),
            // More of the same are greater, in whatever order.
            (4000, vec![above, OWN], true),
            (4000, vec![OWN, new], false),
        ];
        for (port, addresses, is_lost) in cases {
            let now = Instant::now();
            let mut responder = Responder::new(vec![OWN], now);
            let now = responder.next().unwrap();
            responder.due(&names(4000), now).unwrap();
            let other = Responder::new(addresses.clone(), now);
            let probe = other.probe(&names(port));
            assert_eq!(hear(&mut responder, &probe, true, now), Heard::Nothing);
            let wait = responder.next().unwrap() - now;
            assert_eq!(wait >= LOST, is_lost, "{port} {addresses:?}");
            assert!(is_lost || wait == PROBE);
        }
    }

    #[test]
    fn questions_are_answered_to_all_at_most_once_a_second_or_to_who_cannot_hear_that() {
        let (mut responder, now) = known();
        let Names { kind, service, host, .. } = names(4000);
        let asks = [(&kind, PTR), (&service, SRV), (&service, TXT), (&host, A), (&host, ANY)];
        for (name, kind) in asks.into_iter().chain([(&Name::of(KINDS), PTR)]) {
            let (mut responder, question) = (known().0, question(name, kind));
            assert_eq!(hear(&mut responder, &question, true, now), Heard::Nothing);
            assert!(responder.next().is_some(), "{name:?} {kind}");
            let Heard::Reply(reply) = hear(&mut responder, &question, false, now) else {
                panic!("{name:?} {kind}")
            };
            let reply = parse(&reply).unwrap();
            assert!(reply.questions.len() == 1 && reply.records.iter().all(|it| it.ttl == BRIEF));
        }
        for (name, kind) in [(&kind, A), (&service, A), (&host, SRV), (&Name::of("vm.local"), A)] {
            assert_eq!(hear(&mut responder, &question(name, kind), false, now), Heard::Nothing);
        }
        // Each of many asks.
        for _ in 0..1000 {
            hear(&mut responder, &question(&kind, PTR), true, now + DELAY);
        }
        assert_eq!(responder.next(), Some(now + PAUSE));
        responder.due(&names(4000), now + PAUSE).unwrap();
        assert_eq!(responder.next(), None);
        // Who probes is answered sooner.
        let probe = responder.probe(&names(4001));
        hear(&mut responder, &probe, true, now + PAUSE);
        assert_eq!(responder.next(), Some(now + PAUSE + PROBE));
    }

    #[test]
    fn who_knows_the_answer_is_not_told_again() {
        let (mut responder, now) = known();
        let Names { kind, service, .. } = names(4000);
        for (ttl, is_answered) in [(LONG, false), (LONG / 2 + 1, false), (10, true)] {
            let mut writer = Writer::query();
            writer.question(&kind, PTR);
            writer.record(1, (&kind, PTR, false), ttl, &name_data(&service));
            hear(&mut responder, &writer.finish(), true, now);
            assert_eq!(responder.next().is_some(), is_answered, "{ttl}");
        }
    }
}
