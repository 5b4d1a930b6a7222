//! Metrics for Prometheus, over HTTP.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use busbar::pipeline::Counters;
use busbar::{Error, Result, later};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// How long a request and its answer may take together.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long to wait after a connection could not be accepted: without descriptors, it would fail again at
/// once.
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes of the longest request.
const MOST: usize = 8 << 10;

/// The counters that a server shows.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Arc<Mutex<Counters>>);

impl Metrics {
    /// Answers requests at this address from now on, in a thread of its own.
    pub fn serve(address: SocketAddr) -> Result<Self> {
        let failed = |why| Error::new("listen for Prometheus on", address.to_string(), why);
        let listener = TcpListener::bind(address).map_err(failed)?;
        let metrics = Self::default();
        let shown = metrics.clone();
        let serve = move || {
            // A client that closes its connection early is no error.
            let answer = |socket| _ = shown.answer(socket, PATIENCE);
            each(listener.incoming(), answer, || thread::sleep(PAUSE));
        };
        thread::Builder::new().name("metrics".into()).spawn(serve).map_err(failed)?;
        Ok(metrics)
    }

    pub fn set(&self, counters: Counters) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = counters;
    }

    fn answer(&self, mut socket: TcpStream, patience: Duration) -> std::io::Result<()> {
        let mut socket = Patient { socket: &mut socket, until: later(Instant::now(), patience) };
        let (status, body) = match target(&mut socket)?.as_deref() {
            Some("/metrics") => ("200 OK", self.text()),
            Some(_) => ("404 Not Found", "see /metrics\n".into()),
            None => ("400 Bad Request", "GET /metrics\n".into()),
        };
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n",
            body.len()
        );
        socket.write_all(head.as_bytes())?;
        socket.write_all(body.as_bytes())
    }

    fn text(&self) -> String {
        let counters = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut registry = Registry::with_prefix("busbar");
        registry.register_collector(Box::new(Shown(counters)));
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = text::encode(&mut text, &registry);
        text
    }
}

/// Answers each connection, and pauses after one could not be accepted.
fn each<T>(
    incoming: impl Iterator<Item = std::io::Result<T>>,
    mut answer: impl FnMut(T),
    mut wait: impl FnMut(),
) {
    for socket in incoming {
        match socket {
            Ok(socket) => answer(socket),
            // The client is gone.
            Err(why) if why.kind() == ErrorKind::ConnectionAborted => {}
            Err(_) => wait(),
        }
    }
}

/// A connection with one time limit for all calls.
struct Patient<'a> {
    socket: &'a mut TcpStream,
    until: Instant,
}

impl Patient<'_> {
    fn rest(&self) -> std::io::Result<Option<Duration>> {
        let rest = self.until.checked_duration_since(Instant::now());
        rest.filter(|rest| !rest.is_zero()).map(Some).ok_or(ErrorKind::TimedOut.into())
    }
}

impl Read for Patient<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        self.socket.set_read_timeout(self.rest()?)?;
        self.socket.read(bytes)
    }
}

impl Write for Patient<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.socket.set_write_timeout(self.rest()?)?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.socket.flush()
    }
}

/// What is asked for, if it is a request of that kind.
fn target(socket: &mut impl Read) -> std::io::Result<Option<String>> {
    let (mut bytes, mut len) = (vec![0; MOST], 0);
    while len < MOST {
        let got = match socket.read(&mut bytes[len..]) {
            Err(why) if why.kind() == ErrorKind::Interrupted => continue,
            got => got?,
        };
        len += got;
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&bytes[..len]) {
            Ok(httparse::Status::Partial) if got > 0 => {}
            Ok(httparse::Status::Complete(_)) if request.method == Some("GET") => {
                return Ok(request.path.map(Into::into));
            }
            _ => return Ok(None),
        }
    }
    Ok(None)
}

#[derive(Debug)]
struct Shown(Counters);

/// A metric of the nodes of one kind: its name, its help text, whether it is a counter, and its value.
type Family<'a, T> = (&'a str, &'a str, bool, fn(&T) -> u64);

impl Collector for Shown {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Counters { sources, stages, sinks, controls, copied, .. } = &self.0;
        let out = &mut encoder;
        families(
            out,
            "source",
            sources,
            |it| &it.name,
            &[
                ("samples", "samples received", true, |it| it.samples),
                ("bytes", "bytes of samples received", true, |it| it.bytes),
                ("lost_samples", "samples known to be missing", true, |it| it.lost),
                ("unknown_losses", "blocks of unknown loss", true, |it| it.unknown),
                ("failed_blocks", "blocks that the converter returned with an error", true, |it| {
                    it.failed
                }),
                ("restarts", "times it was opened again", true, |it| it.restarts),
                ("reconnects", "times a sender reconnected", true, |it| it.reconnects),
                ("corrupted_frames", "frames that were not valid", true, |it| it.corrupted),
            ],
        )?;
        families(
            out,
            "stage",
            stages,
            |it| &it.name,
            &[
                ("samples", "samples of its output", true, |it| it.samples),
                ("dropped_blocks", "blocks dropped before it", true, |it| it.dropped_blocks),
                ("kept_back_samples", "samples held back by a gate", true, |it| it.kept_back),
                ("waiting_blocks", "blocks that wait", false, |it| it.waiting as u64),
            ],
        )?;
        families(
            out,
            "sink",
            sinks,
            |it| &it.name,
            &[
                ("samples", "samples delivered", true, |it| it.samples),
                ("bytes", "bytes of samples delivered", true, |it| it.bytes),
                ("lost_samples", "samples missing in what was delivered", true, |it| it.lost),
                ("unknown_losses", "blocks of unknown loss", true, |it| it.unknown),
                ("dropped_blocks", "blocks dropped before it", true, |it| it.dropped_blocks),
                ("failed_blocks", "blocks lost in flight", true, |it| it.failed),
                ("restarts", "times it was opened again", true, |it| it.restarts),
                ("reconnects", "times it connected again", true, |it| it.reconnects),
                ("resent_blocks", "blocks sent again", true, |it| it.resent),
                ("waiting_blocks", "blocks that wait", false, |it| it.waiting as u64),
                ("under_way_blocks", "blocks in flight", false, |it| it.under_way as u64),
                ("latency_p50_microseconds", "median latency", false, |it| it.latency_p50),
                ("latency_p99_microseconds", "latency of 99 of 100 blocks", false, |it| {
                    it.latency_p99
                }),
            ],
        )?;
        families(
            out,
            "control",
            controls,
            |it| &it.name,
            &[
                ("commands", "commands carried out", true, |it| it.commands),
                ("refused_commands", "commands not carried out", true, |it| it.refused),
                ("events", "events", true, |it| it.events),
                ("late_reactions", "reactions after their deadline", true, |it| it.late),
                ("slowest_reaction_microseconds", "slowest reaction", false, |it| it.slowest),
                ("restarts", "times it came back", true, |it| it.restarts),
            ],
        )?;
        let copies = ConstCounter::new(*copied);
        let descriptor =
            out.encode_descriptor("copied_bytes", "bytes copied", None, copies.metric_type())?;
        copies.encode(descriptor)
    }
}

fn families<T>(
    encoder: &mut DescriptorEncoder<'_>,
    kind: &str,
    nodes: &[T],
    name: fn(&T) -> &String,
    all: &[Family<'_, T>],
) -> Result<(), fmt::Error> {
    for (what, help, is_counter, value) in all {
        let called = format!("{kind}_{what}");
        let kinds = ConstCounter::new(0_u64).metric_type();
        let kinds = if *is_counter { kinds } else { ConstGauge::new(0_i64).metric_type() };
        let mut family = encoder.encode_descriptor(&called, help, None, kinds)?;
        for node in nodes {
            let labels = [(kind, name(node).as_str())];
            let one = family.encode_family(&labels)?;
            if *is_counter {
                ConstCounter::new(value(node)).encode(one)?;
            } else {
                ConstGauge::new(i64::try_from(value(node)).unwrap_or(i64::MAX)).encode(one)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use busbar::pipeline::SinkCounters;
    use rustix::io::Errno;

    use super::*;

    fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut socket = TcpStream::connect(address).unwrap();
        // A request that is too long is not read to its end.
        let _ = socket.write_all(request);
        let _ = socket.shutdown(std::net::Shutdown::Write);
        let mut answer = String::new();
        let _ = socket.read_to_string(&mut answer);
        answer
    }

    #[test]
    fn a_connection_that_cannot_be_had_is_waited_for() {
        let failed = |errno: Errno| Err(std::io::Error::from(errno));
        let all =
            [Ok(1), failed(Errno::MFILE), failed(Errno::CONNABORTED), failed(Errno::NFILE), Ok(2)];
        let (mut answered, mut waits) = (Vec::new(), 0);
        each(all.into_iter(), |number| answered.push(number), || waits += 1);
        assert_eq!((answered, waits), (vec![1, 2], 2));
    }

    #[test]
    fn a_client_that_drips_or_takes_nothing_has_one_time_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serve = move |metrics: Metrics| {
            let socket = listener.accept().unwrap().0;
            metrics.answer(socket, Duration::from_millis(200)).unwrap_err().kind()
        };
        let timed_out = [ErrorKind::TimedOut, ErrorKind::WouldBlock];
        let is_over = |kind| timed_out.contains(&kind);

        // A byte each time just before a limit of the call alone.
        let thread = thread::spawn(move || (serve(Metrics::default()), serve));
        let mut socket = TcpStream::connect(address).unwrap();
        while !thread.is_finished() {
            let _ = socket.write_all(b"G");
            thread::sleep(Duration::from_millis(20));
        }
        let (kind, serve) = thread.join().unwrap();
        assert!(is_over(kind), "{kind}");

        // More than the kernel's buffers hold, taken slowly.
        let metrics = Metrics::default();
        metrics.set(counters(&"x".repeat(24 << 20)));
        let thread = thread::spawn(move || serve(metrics));
        let mut socket = TcpStream::connect(address).unwrap();
        socket.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut some = vec![0; 16 << 10];
        while !thread.is_finished() {
            let _ = socket.read(&mut some);
            thread::sleep(Duration::from_millis(20));
        }
        let kind = thread.join().unwrap();
        assert!(is_over(kind), "{kind}");
    }

    /// Counters of a pipeline with this sink.
    fn counters(name: &str) -> Counters {
        let mut sink = SinkCounters::default();
        (sink.name, sink.samples, sink.waiting) = (name.into(), 7, 3);
        let mut counters = Counters::default();
        (counters.sinks, counters.copied) = (vec![sink], 9);
        counters
    }

    #[test]
    fn metrics_are_what_prometheus_reads() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let metrics = Metrics::serve(free).unwrap();
        metrics.set(counters("net"));
        let answer = ask(free, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        for line in [
            "busbar_sink_samples_total{sink=\"net\"} 7",
            "busbar_sink_waiting_blocks{sink=\"net\"} 3",
            "busbar_copied_bytes_total 9",
            "# TYPE busbar_sink_samples counter",
            "# EOF",
        ] {
            assert!(answer.lines().any(|it| it == line), "{line}: {answer}");
        }
        assert!(ask(free, b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        for bad in [&b"POST /metrics HTTP/1.1\r\n\r\n"[..], b"\0\xff\r\n\r\n", b"", &[b'a'; 9000]] {
            let answer = ask(free, bad);
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer}");
        }
        assert!(Metrics::serve(free).is_err());
    }
}
