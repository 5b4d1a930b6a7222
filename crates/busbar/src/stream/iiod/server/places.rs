//! Who gets a place, and who is told that there is none.

use std::collections::HashMap;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::Server;
use crate::stream::iiod::peer::{Machine, Peer, Refusal};

/// Of so many places, one is for machines that have none.
const PART: usize = 8;
/// Most connections without a place that are told so at a time, and how long they have to say something.
const MOST_REFUSED: usize = 16;
const PATIENCE: Duration = Duration::from_secs(1);

/// A connection without a place: its first command is answered by an error, since clients tell that to their users. The end of
/// a connection tells nothing.
#[derive(Debug)]
pub(super) struct Refused(TcpStream, Instant);

impl Refused {
    /// Answers if it has said something. Returns whether it is to wait.
    fn waits(&self) -> bool {
        let mut bytes = [0_u8; 4096];
        match rustix::net::recv(&self.0, &mut bytes, RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => self.1.elapsed() < PATIENCE,
            Ok((1.., _)) => {
                let answer = format!("-{}\n", Errno::BUSY.raw_os_error());
                let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                // It is a courtesy: there is room for a line in a new connection.
                let _ = rustix::net::send(&self.0, answer.as_bytes(), flags);
                false
            }
            _ => false,
        }
    }
}

impl Server {
    /// Keeps a connection for a moment, to tell it that it has no place.
    pub(super) fn refuse(&mut self, socket: TcpStream) {
        if self.refused.len() < MOST_REFUSED {
            self.refused.push(Refused(socket, Instant::now()));
        }
    }

    pub(super) fn tell_refused(&mut self) {
        self.refused.retain(Refused::waits);
    }

    /// Makes sure that there is a place for a client of this machine. If there is none, the connection that has been idle for
    /// the longest time is closed: that of the machine which has most of them, and at least two more than this one.
    pub(super) fn make_room(&mut self, machine: Machine) -> Result<(), Refusal> {
        let own = self.clients.iter().filter(|client| client.who.host == machine).count();
        let free = self.most_clients.saturating_sub(self.clients.len());
        let kept = if own == 0 { 0 } else { self.most_clients / PART };
        if free > kept {
            return Ok(());
        }
        let Some(index) = self.idle_one(own + 2) else {
            return Err(if free > 0 {
                Refusal::Share(own)
            } else {
                Refusal::Full(self.most_clients)
            });
        };
        self.clients[index].refusal = Some(Refusal::Idle);
        self.remove(index);
        Ok(())
    }

    /// The longest idle client of the machine that has most clients, of those that have so many. A USB host has its pipes
    /// for itself.
    fn idle_one(&self, most: usize) -> Option<usize> {
        let mut counts = HashMap::new();
        self.clients.iter().for_each(|it| *counts.entry(it.who.host).or_insert(0) += 1);
        let clients = self.clients.iter().enumerate();
        let idle = clients
            .filter(|(_, client)| matches!(client.peer, Peer::Net(_)) && client.is_idle(&self.hub));
        let counted = idle.map(|(index, client)| (counts[&client.who.host], client.heard, index));
        let counted = counted.filter(|(count, ..)| *count >= most);
        let first = counted.min_by_key(|(count, heard, _)| (std::cmp::Reverse(*count), *heard));
        first.map(|(.., index)| index)
    }
}
