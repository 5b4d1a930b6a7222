//! Servers: the same one with [`Poller`], mio, polling and libuv.
//!
//! | case | what the clients do | what the server asks for |
//! |---|---|---|
//! | `server` | they stay connected | to hear of a connection whenever something comes |
//! | `server-churn` | after each round an eighth of them leave, and as many others come | the same |
//! | `server-rearm` | they stay connected | to hear of a connection once, and again after each answer |
//!
//! A server answers each request of 64 bytes with the same bytes, through Unix sockets. In a round, every client sends a
//! request and then takes its answer. The first two cases have each library as it is fastest: edge-triggered with `Poller`,
//! mio and polling, `uv_read_start` once with libuv. The third is for a server that hands requests to other threads: a
//! one-shot interest with `Poller` and polling, `uv_read_stop` and `uv_read_start` with libuv. mio has no such interest.
//!
//! Each server is a process ([`serve`], and `server.c` for libuv), which prints its processor time after the first round.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use busbar::wait::{Events, Interest, Poller};
use busbar::{Error, Result};
use mio::unix::SourceFd;
use polling::PollMode;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, listen};
use rustix::time::ClockId;
use serde::{Deserialize, Serialize};

use super::Plan;
use crate::Case;
use crate::clock::{Cost, cases, float, in_turn, micros_each, now};
use crate::languages::compile;

/// Connected clients.
const CLIENTS: [usize; 3] = [64, 512, 2_000];
const REQUEST: usize = 64;
/// Bytes of one read: what is shorter was all.
const BUFFER: usize = 4_096;
/// Events of one wait; libuv has 1 024.
const ROOM: usize = 1_024;
/// How long clients wait for a server.
const PATIENCE: Duration = Duration::from_secs(60);
const C: &str = include_str!("server.c");

/// The libraries that a server in Rust can be made with; the first one is Busbar.
pub const LIBRARIES: [&str; 3] = ["busbar", "mio", "polling"];

/// What a server prints.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Its processor time, and the kernel's on its behalf, in microseconds.
    pub cpu_micros: f64,
}

// -- Servers

type Connection = Arc<OwnedFd>;

/// What a library does for a server. A key is the number of a connection.
trait Set {
    fn add(&mut self, connection: &Connection, key: usize) -> io::Result<()>;
    /// Asks for the next event of a connection.
    fn again(&mut self, connection: &Connection, key: usize) -> io::Result<()>;
    fn remove(&mut self, connection: &Connection) -> io::Result<()>;
    /// Waits, and adds the keys of those that are ready.
    fn wait(&mut self, ready: &mut Vec<usize>) -> io::Result<()>;
}

struct Busbar {
    poller: Poller,
    events: Events,
    rearms: bool,
}

impl Busbar {
    fn interest(&self) -> Interest {
        if self.rearms { Interest::READABLE.one_shot() } else { Interest::READABLE.edge() }
    }
}

impl Set for Busbar {
    fn add(&mut self, connection: &Connection, key: usize) -> io::Result<()> {
        self.poller.queue_add(connection, key as u64, self.interest());
        Ok(())
    }

    fn again(&mut self, connection: &Connection, key: usize) -> io::Result<()> {
        if self.rearms {
            self.poller.queue_change(connection, key as u64, self.interest());
        }
        Ok(())
    }

    fn remove(&mut self, connection: &Connection) -> io::Result<()> {
        self.poller.queue_remove(connection);
        Ok(())
    }

    fn wait(&mut self, ready: &mut Vec<usize>) -> io::Result<()> {
        self.poller.wait(&mut self.events)?;
        if let Some(failure) = self.events.failures().first() {
            return Err(failure.errno().into());
        }
        let key = |key: u64| usize::try_from(key).unwrap_or(usize::MAX);
        ready.extend(self.events.iter().map(|event| key(event.key())));
        Ok(())
    }
}

/// Always edge-triggered.
struct Mio(mio::Poll, mio::Events);

impl Set for Mio {
    fn add(&mut self, connection: &Connection, key: usize) -> io::Result<()> {
        let (fd, interest) = (connection.as_raw_fd(), mio::Interest::READABLE);
        self.0.registry().register(&mut SourceFd(&fd), mio::Token(key), interest)
    }

    fn again(&mut self, _: &Connection, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn remove(&mut self, connection: &Connection) -> io::Result<()> {
        self.0.registry().deregister(&mut SourceFd(&connection.as_raw_fd()))
    }

    fn wait(&mut self, ready: &mut Vec<usize>) -> io::Result<()> {
        self.0.poll(&mut self.1, None)?;
        ready.extend(self.1.iter().map(|event| event.token().0));
        Ok(())
    }
}

struct Polling {
    poller: polling::Poller,
    events: polling::Events,
    rearms: bool,
}

impl Set for Polling {
    #[allow(unsafe_code)]
    fn add(&mut self, connection: &Connection, key: usize) -> io::Result<()> {
        let mode = if self.rearms { PollMode::Oneshot } else { PollMode::Edge };
        // SAFETY: the connection is removed before it is closed.
        unsafe { self.poller.add_with_mode(connection, polling::Event::readable(key), mode) }
    }

    fn again(&mut self, connection: &Connection, key: usize) -> io::Result<()> {
        if !self.rearms {
            return Ok(());
        }
        self.poller.modify(connection, polling::Event::readable(key))
    }

    fn remove(&mut self, connection: &Connection) -> io::Result<()> {
        self.poller.delete(connection)
    }

    fn wait(&mut self, ready: &mut Vec<usize>) -> io::Result<()> {
        self.events.clear();
        self.poller.wait(&mut self.events, None)?;
        ready.extend(self.events.iter().map(|event| event.key));
        Ok(())
    }
}

/// Serves `warm` requests, and then `requests` others, which are measured. `library` is one of [`LIBRARIES`]; `path` is
/// that of the socket, which is made. With `rearms`, it asks again after each answer.
///
/// # Errors
///
/// Bad input for another library, and for mio if it is to ask again; those of the calls.
pub fn serve(
    library: &str,
    rearms: bool,
    path: &Path,
    warm: u64,
    requests: u64,
) -> Result<Outcome> {
    super::allow_descriptors()?;
    let failed = |why| failed(library, why);
    let mut server = UnixListener::bind(path).and_then(Server::new).map_err(failed)?;
    let cpu = match library {
        "busbar" => {
            let (poller, events) = (Poller::new()?, Events::new(ROOM)?);
            server.run(Busbar { poller, events, rearms }, warm, requests)
        }
        "mio" if !rearms => mio::Poll::new().and_then(|poll| {
            server.run(Mio(poll, mio::Events::with_capacity(ROOM)), warm, requests)
        }),
        "polling" => polling::Poller::new().and_then(|poller| {
            let room = ROOM.try_into().map_err(io::Error::other)?;
            let events = polling::Events::with_capacity(room);
            server.run(Polling { poller, events, rearms }, warm, requests)
        }),
        other => {
            let allowed = if rearms { "busbar, polling".into() } else { LIBRARIES.join(", ") };
            return Err(Error::invalid("library", other, allowed));
        }
    };
    Ok(Outcome { cpu_micros: cpu.map_err(failed)?.as_secs_f64() * 1e6 })
}

fn failed(library: &str, why: io::Error) -> Error {
    Error::new("run", format!("the server with {library}"), why)
}

struct Server {
    listener: Connection,
    open: Vec<Option<Connection>>,
    free: Vec<usize>,
    buffer: Box<[u8; BUFFER]>,
}

/// The key of the listener. The first place for a connection stays empty.
const LISTENER: usize = 0;

impl Server {
    fn new(listener: UnixListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        // More than the clients that come at once.
        listen(&listener, 4_096)?;
        let listener = Arc::new(OwnedFd::from(listener));
        let buffer = Box::new([0; BUFFER]);
        Ok(Self { listener, open: vec![None], free: Vec::new(), buffer })
    }

    /// Returns the processor time of the requests behind the first ones.
    fn run(&mut self, mut set: impl Set, warm: u64, requests: u64) -> io::Result<Duration> {
        set.add(&self.listener, LISTENER)?;
        let (mut ready, mut answered, mut start) = (Vec::with_capacity(ROOM), 0, Duration::ZERO);
        while answered < warm + requests {
            set.wait(&mut ready)?;
            for key in ready.drain(..) {
                if key == LISTENER {
                    self.accept(&mut set)?;
                } else if self.answer(&mut set, key)? {
                    answered += 1;
                    if answered == warm {
                        start = now(ClockId::ProcessCPUTime);
                    }
                }
            }
        }
        Ok(now(ClockId::ProcessCPUTime).saturating_sub(start))
    }

    fn accept(&mut self, set: &mut impl Set) -> io::Result<()> {
        loop {
            let connection =
                match accept_with(&self.listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                    Ok(connection) => Arc::new(connection),
                    Err(Errno::AGAIN) => return set.again(&self.listener, LISTENER),
                    Err(errno) => return Err(errno.into()),
                };
            let key = self.free.pop().unwrap_or_else(|| {
                self.open.push(None);
                self.open.len() - 1
            });
            set.add(&connection, key)?;
            self.open[key] = Some(connection);
        }
    }

    /// Answers a request; false if there was none, as its client has left.
    fn answer(&mut self, set: &mut impl Set, key: usize) -> io::Result<bool> {
        let Some(connection) = &self.open[key] else { return Ok(false) };
        let len = rustix::io::read(connection, &mut *self.buffer)?;
        if len == 0 {
            set.remove(connection)?;
            self.open[key] = None;
            self.free.push(key);
            return Ok(false);
        }
        // There is room for what the client waits for.
        rustix::io::write(connection, &self.buffer[..len])?;
        set.again(connection, key)?;
        Ok(true)
    }
}

// -- Clients

#[derive(Clone, Copy)]
struct Load {
    clients: usize,
    rounds: usize,
    /// Clients that leave after each round.
    leave: usize,
    /// Whether the server asks again after each answer.
    rearms: bool,
}

impl Load {
    fn requests(self) -> u64 {
        (self.clients * self.rounds) as u64
    }

    /// Runs a server and its clients. Returns the time and the server's processor time for each request.
    fn run(self, server: &[OsString], folder: &Path) -> io::Result<Cost> {
        let path = folder.join("socket");
        let _ = std::fs::remove_file(&path);
        let [warm, requests] = [self.clients as u64, self.requests()].map(|it| it.to_string());
        let mut child = Command::new(&server[0])
            .args(&server[1..])
            .arg(if self.rearms { "rearm" } else { "stay" })
            .arg(&path)
            .args([warm, requests])
            .stdout(Stdio::piped())
            .spawn()?;
        let micros = self.drive(&path, &mut child).inspect_err(|_| {
            let _ = child.kill();
        });
        let output = child.wait_with_output()?;
        let micros = micros?;
        let outcome: Outcome = serde_json::from_slice(&output.stdout).map_err(io::Error::other)?;
        Ok(Cost { micros, cpu_micros: outcome.cpu_micros / float(self.requests()) })
    }

    fn drive(self, path: &Path, server: &mut Child) -> io::Result<f64> {
        let mut clients = vec![first(path, server)?];
        for _ in 1..self.clients {
            clients.push(connect(path)?);
        }
        round(&mut clients)?;
        let start = Instant::now();
        let mut next = 0;
        for done in 1..=self.rounds {
            round(&mut clients)?;
            // Nobody waits for those who come after the last one.
            for _ in 0..if done < self.rounds { self.leave } else { 0 } {
                clients[next] = connect(path)?;
                next = (next + 1) % clients.len();
            }
        }
        Ok(micros_each(start, self.requests()))
    }
}

/// The first client, who waits until the server is there.
fn first(path: &Path, server: &mut Child) -> io::Result<UnixStream> {
    let begin = Instant::now();
    loop {
        match connect(path) {
            Err(_) if server.try_wait()?.is_none() && begin.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(1));
            }
            connected => return connected,
        }
    }
}

fn connect(path: &Path) -> io::Result<UnixStream> {
    let client = UnixStream::connect(path)?;
    client.set_read_timeout(Some(PATIENCE))?;
    Ok(client)
}

fn round(clients: &mut [UnixStream]) -> io::Result<()> {
    for (number, client) in clients.iter_mut().enumerate() {
        client.write_all(&[number.to_le_bytes()[0]; REQUEST])?;
    }
    for (number, client) in clients.iter_mut().enumerate() {
        let mut answer = [0; REQUEST];
        client.read_exact(&mut answer)?;
        if answer != [number.to_le_bytes()[0]; REQUEST] {
            return Err(io::Error::other("the answer is not that of the request"));
        }
    }
    Ok(())
}

// -- Cases

/// `command` runs [`serve`], and gets the name of a library, `rearm` or `stay`, the path and the two numbers.
pub(super) fn run(
    plan: &Plan,
    command: &[PathBuf],
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Case>> {
    let folder = tempfile::tempdir().map_err(|why| Error::new("make", "a folder", why))?;
    let of = |library: &str| {
        let command = command.iter().map(OsString::from);
        command.chain([library.into()]).collect::<Vec<_>>()
    };
    let [ours, others @ ..] = LIBRARIES;
    let ours = of(ours);
    let mut others: Vec<_> = others.map(|library| (library, of(library))).into();
    match compile(folder.path(), "server", C, &["-luv".into()]) {
        Ok(program) => others.push(("libuv", vec![program.into()])),
        Err(why) => eprintln!("left out: libuv: {why}"),
    }
    let mut all = Vec::new();
    for &clients in &CLIENTS[..plan.servers] {
        let rounds = usize::try_from(plan.requests).unwrap_or(usize::MAX) / clients;
        for (name, leave, rearms) in
            [("server", 0, false), ("server-churn", clients / 8, false), ("server-rearm", 0, true)]
        {
            let load = Load { clients, rounds: rounds.max(4), leave, rearms };
            for (library, usual) in others.iter().filter(|(name, _)| !rearms || *name != "mio") {
                progress(&format!("{name} of {clients} clients, {library}"));
                let run = |by: &str, server| {
                    load.run(server, folder.path()).map_err(|why| failed(by, why))
                };
                let runs = in_turn(plan.rows, || run(library, usual), || run("Busbar", &ours))?;
                let params = [("clients", clients as u64), ("requests", load.requests())];
                all.extend(cases(name, &params, "us/request", library, &runs));
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_answers_clients_that_come_and_go() {
        for (library, rearms) in LIBRARIES.into_iter().flat_map(|it| [(it, false), (it, true)]) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("socket");
            if library == "mio" && rearms {
                let error = serve(library, rearms, &path, 0, 0).unwrap_err();
                assert!(error.to_string().contains("busbar, polling"), "{error}");
                continue;
            }
            let load = Load { clients: 16, rounds: 4, leave: 2, rearms };
            let server = {
                let path = path.clone();
                std::thread::spawn(move || serve(library, rearms, &path, 16, load.requests()))
            };
            // Any process that runs for as long.
            let mut child = Command::new("sleep").arg("60").spawn().unwrap();
            load.drive(&path, &mut child).unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(server.join().unwrap().unwrap().cpu_micros > 0.0, "{library}");
        }
        let error = serve("mio", false, Path::new("/nonexistent/socket"), 0, 0).unwrap_err();
        assert!(error.to_string().contains("the server with mio"), "{error}");
    }
}
