//! The set-up for sequences in the lab's guest: coprocessors, a converter, a pair of NICs with a sender,
//! and links to all files that calls may open.

use std::collections::VecDeque;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use busbar::{Error, Result};
use busbar_lab::stage::{Driver, Side, load_converter};
use busbar_uapi::{netdev, rpmsg_netlink};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::netlink::{GENERIC, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send, socket_with,
};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::calls::FOLDER;
use crate::describe::Found;
use crate::image::Numbers;
use crate::unsafe_calls::{epoll_numbers, fork, limit_self};

/// Services of the coprocessors that sequences do not control.
const SERVICES: [&str; 4] = ["echo", "sink", "source", "bulk-netlink"];
/// The coprocessor whose process a sequence may become.
const CORE: &str = "vcoproc2";
const CONVERTERS: &str = "/sys/kernel/config/iio/devices/vconv";
/// Network namespace of the other end of the pair and of the sender.
const NAMESPACE: &str = "fuzz-far";
const FAR: &str = "10.77.0.2:7777";
/// Number of bytes sent to each connection.
const SENT: usize = 512 << 10;

/// Files of the receiver and the transmitter in sysfs, and the names of their links.
const ATTRIBUTES: [(&str, &str); 7] = [
    ("enable", "buffer0/enable"),
    ("length", "buffer0/length"),
    ("rate", "sampling_frequency"),
    ("pattern", "pattern"),
    ("loopback", "loopback"),
    ("gain", "in_voltage0_i_hardwaregain"),
    ("sine", "sine_frequency"),
];
/// Files of fault injection in debugfs, and the names of their links.
const FAULTS: [(&str, &str); 3] =
    [("lose", "lose_samples"), ("short", "short_samples"), ("fail", "fail_blocks")];

/// The set-up; dropping it removes everything.
pub struct Guest {
    sides: Vec<Side>,
    sender: Pid,
    /// Numbers that are determined in the guest.
    pub numbers: Numbers,
}

impl Guest {
    /// Sets everything up, as root in a guest of the lab.
    pub fn up() -> Result<Self> {
        fs::create_dir_all(FOLDER).map_err(at(FOLDER))?;
        // The module may be loaded with fewer cores.
        run("[ -e /dev/vcoproc2 ] || { modprobe -rq vcoproc || true; modprobe vcoproc count=3; }
             echo 200 >/sys/module/vcoproc/parameters/stop_timeout_ms
             modprobe -a vnic rpmsg_netlink")?;
        let program = std::env::var_os("BUSBAR_PROGRAM").map_or("busbar".into(), PathBuf::from);
        let sides = vec![
            Side::up(0, Driver::Eptfd, &program, &SERVICES)?,
            Side::up(1, Driver::InTree, &program, &["echo", "sink"])?,
        ];
        link(sides[0].controller(), "eptfd")?;
        link(sides[1].controller(), "in-tree")?;
        core()?;
        converter()?;
        link(Path::new("/dev/dma_heap/system"), "heap")?;
        link(Path::new("/dev/udmabuf"), "udmabuf")?;
        let device = nic()?;
        Ok(Self { sides, sender: feed()?, numbers: numbers(device)? })
    }

    /// Removes objects that sequences have left, so that they do not accumulate.
    pub fn tidy(&self) -> Result<()> {
        for side in &self.sides {
            if side.process().is_none() || !side.controller().exists() {
                let on = side.controller().display().to_string();
                let why = std::io::Error::other(
                    "it does not exist any more, and no sequence may remove it",
                );
                return Err(Error::new("use", on, why));
            }
        }
        for name in ["fuzz0", "fuzz1"] {
            if Path::new("/sys/class/net").join(name).exists() {
                run(&format!("ip link del {name}"))?;
            }
        }
        for name in ["fuzz-a", "fuzz-b-tx"] {
            // A converter that does not exist is not an error.
            let _ = fs::remove_dir(Path::new(CONVERTERS).join(name));
        }
        for entry in fs::read_dir("/dev").map_err(at("/dev"))?.flatten() {
            let name = entry.file_name().into_string().unwrap_or_default();
            let number = name.strip_prefix("rpmsg").map(str::parse::<u32>);
            if matches!(number, Some(Ok(_))) {
                // The endpoint may be destroyed already.
                let _ = fs::File::open(entry.path()).map(busbar_uapi::rpmsg::destroy_ept);
            }
        }
        Ok(())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = kill_process(self.sender, Signal::KILL);
        self.sides.clear();
        // An object that cannot be removed makes the next set-up fail, which reports the error.
        let _ = run(&format!(
            "set +e; ip link del nic0; ip netns del {NAMESPACE}; rmdir {CONVERTERS}/fuzz; modprobe -r vcoproc"
        ));
    }
}

/// Starts the core whose process sequences may become.
fn core() -> Result<()> {
    link(&Path::new("/dev").join(CORE), "core")?;
    let folder = PathBuf::from(format!("/sys/class/vcoproc/{CORE}/device/remoteproc"));
    let entries = fs::read_dir(&folder).map_err(at(&folder.display().to_string()))?;
    let state = entries.flatten().next().map(|entry| entry.path().join("state"));
    let state = state.ok_or_else(|| Error::new("find", CORE, Errno::NODEV))?;
    // The core may still run from an earlier set-up.
    let _ = fs::write(&state, "stop");
    fs::write(&state, "start").map_err(at(&state.display().to_string()))?;
    link(&state, "core.state")
}

fn converter() -> Result<()> {
    load_converter()?;
    if !Path::new(CONVERTERS).exists() {
        run("mount -t configfs none /sys/kernel/config")?;
    }
    let folder = format!("{CONVERTERS}/fuzz");
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    for (name, short) in [("fuzz", "rx"), ("fuzz-tx", "tx")] {
        let device = iio_device(name)?;
        let file = device.file_name().unwrap_or_default();
        link(&Path::new("/dev").join(file), &format!("{short}.device"))?;
        for (as_name, attribute) in ATTRIBUTES {
            link(&device.join(attribute), &format!("{short}.{as_name}"))?;
        }
        let faults = Path::new("/sys/kernel/debug/iio").join(file);
        for (as_name, fault) in FAULTS {
            link(&faults.join(fault), &format!("{short}.{as_name}"))?;
        }
        link(&device.join("scan_elements/in_count0_en"), &format!("{short}.count"))?;
        run(&format!(
            "for f in {}/scan_elements/*voltage*_en; do echo 1 >$f; done",
            device.display()
        ))?;
    }
    Ok(())
}

fn iio_device(name: &str) -> Result<PathBuf> {
    let folder = "/sys/bus/iio/devices";
    let entries = fs::read_dir(folder).map_err(at(folder))?.flatten().map(|entry| entry.path());
    let is_it =
        |path: &PathBuf| fs::read_to_string(path.join("name")).is_ok_and(|it| it.trim() == name);
    entries.into_iter().find(is_it).ok_or_else(|| Error::new("find converter", name, Errno::NODEV))
}

/// Creates a pair with the receiving end in this namespace; returns its interface index.
fn nic() -> Result<u32> {
    run(&format!(
        "if [ -e /sys/class/net/nic0 ]; then ip link del nic0; fi
         if [ -e /run/netns/{NAMESPACE} ]; then ip netns del {NAMESPACE}; fi
         ip netns add {NAMESPACE}
         ip link add nic0 address 02:77:00:00:00:01 numrxqueues 16 numtxqueues 16 type vnic
         ip link set vnic0 address 02:77:00:00:00:02
         ip link set vnic0 netns {NAMESPACE}
         ip addr add 10.77.0.1/24 dev nic0; ip link set nic0 up
         ip -n {NAMESPACE} addr add 10.77.0.2/24 dev vnic0; ip -n {NAMESPACE} link set vnic0 up
         ethtool -X nic0 equal 1
         ethtool -K nic0 ntuple on
         ethtool -N nic0 flow-type tcp4 src-port 7777 action 1"
    ))?;
    let path = "/sys/class/net/nic0/ifindex";
    let index = fs::read_to_string(path).map_err(at(path))?;
    index.trim().parse().map_err(|_| Error::invalid(path, index.trim(), "a number"))
}

/// Starts a process at the other end that sends to each connection.
fn feed() -> Result<Pid> {
    // A thread, as it cannot return from the name space. Calls find the socket, however late the process starts.
    let listener = std::thread::spawn(listen).join();
    let listener = listener.unwrap_or_else(|_| Err(std::io::Error::other("a thread panicked")));
    let listener = listener.map_err(|why| Error::new("listen on", FAR, why))?;
    let sender = fork(|| {
        limit_self();
        // Without the sender, the fuzzer's coverage of devmem shows the failure.
        let _ = serve(&listener);
    });
    sender.map_err(|why| Error::new("fork", "the sender", why))
}

fn listen() -> std::io::Result<TcpListener> {
    let namespace = fs::File::open(format!("/run/netns/{NAMESPACE}"))?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
    TcpListener::bind(FAR)
}

fn serve(listener: &TcpListener) -> std::io::Result<()> {
    let mut open = VecDeque::new();
    let data = vec![0x5a; SENT];
    loop {
        let (mut socket, _) = listener.accept()?;
        socket.set_write_timeout(Some(Duration::from_millis(200)))?;
        // Connections that end early are expected.
        let _ = socket.write_all(&data);
        open.push_back(socket);
        if open.len() > 4 {
            open.pop_front();
        }
    }
}

fn numbers(device: u32) -> Result<Numbers> {
    let mut netlink = Netlink::open()?;
    let mut numbers = Numbers::from([(Found::Device, device.into())]);
    for (found, name) in [
        (Found::RpmsgFamily, rpmsg_netlink::FAMILY),
        (Found::NetdevFamily, netdev::FAMILY),
        (Found::EthtoolFamily, netdev::ethtool::FAMILY),
    ] {
        numbers.insert(found, netlink.family(name)?.into());
    }
    netlink.split_headers(numbers[&Found::EthtoolFamily], device)?;
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)
        .map_err(|why| Error::new("create", "an epoll set", why))?;
    if let Some([batch, wait]) = epoll_numbers(&set) {
        numbers.extend([(Found::CtlBatch, batch.into()), (Found::Pwait1, wait.into())]);
    }
    Ok(numbers)
}

/// Generic netlink requests for the set-up.
struct Netlink(OwnedFd);

impl Netlink {
    fn open() -> Result<Self> {
        let open = || {
            let socket = socket_with(
                AddressFamily::NETLINK,
                SocketType::RAW,
                SocketFlags::CLOEXEC,
                Some(GENERIC),
            )?;
            connect(&socket, &SocketAddrNetlink::new(0, 0))?;
            Ok(socket)
        };
        open().map(Self).map_err(|why: Errno| Error::new("open", "a netlink socket", why))
    }

    /// Sends one request and returns the start of its answer.
    fn ask(&mut self, family: u16, command: u8, attributes: &[u8]) -> Result<Vec<u8>, Errno> {
        const REQUEST_AND_ACK: u16 = 5;
        let len = u32::try_from(20 + attributes.len()).map_err(|_| Errno::MSGSIZE)?;
        let mut message = len.to_ne_bytes().to_vec();
        message.extend(family.to_ne_bytes());
        message.extend(REQUEST_AND_ACK.to_ne_bytes());
        message.extend([0; 8]);
        message.extend([command, 1, 0, 0]);
        message.extend(attributes);
        send(&self.0, &message, SendFlags::empty())?;
        let mut answer = vec![0; 8192];
        let (len, _) = recv(&self.0, &mut answer[..], RecvFlags::empty())?;
        answer.truncate(len);
        Ok(answer)
    }

    fn family(&mut self, name: &str) -> Result<u16> {
        const GET_FAMILY: u8 = 3;
        const FAMILY_NAME: u16 = 2;
        let failed = |why| Error::new("find netlink family", name, why);
        let request = attribute(FAMILY_NAME, &[name.as_bytes(), b"\0"].concat());
        let answer = self.ask(16, GET_FAMILY, &request).map_err(failed)?;
        // The acknowledgement is read and ignored.
        let _ = recv(&self.0, &mut [0; 256][..], RecvFlags::DONTWAIT);
        number(answer.get(20..).unwrap_or_default()).ok_or_else(|| failed(Errno::NOENT))
    }

    /// Enables header split, which device memory needs; Debian's ethtool is too old to do so.
    fn split_headers(&mut self, family: u64, device: u32) -> Result<()> {
        use netdev::ethtool::{DEV_INDEX, RINGS_HEADER, RINGS_SET, SPLIT_ENABLED, TCP_DATA_SPLIT};
        const NESTED: u16 = 0x8000;
        let header = attribute(RINGS_HEADER | NESTED, &attribute(DEV_INDEX, &device.to_ne_bytes()));
        let request = [header, attribute(TCP_DATA_SPLIT, &[SPLIT_ENABLED])].concat();
        let family = u16::try_from(family).unwrap_or(0);
        let answer = self
            .ask(family, RINGS_SET, &request)
            .map_err(|why| Error::new("split headers of", "nic0", why))?;
        let error = answer.get(16..20).and_then(|error| error.try_into().ok());
        match error.map(i32::from_ne_bytes) {
            Some(0) => Ok(()),
            error => {
                let errno = Errno::from_raw_os_error(-error.unwrap_or(-libc::EPROTO));
                Err(Error::new("split headers of", "nic0", errno))
            }
        }
    }
}

fn attribute(kind: u16, content: &[u8]) -> Vec<u8> {
    let len = u16::try_from(4 + content.len()).unwrap_or(u16::MAX);
    let mut bytes = [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), content].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Finds the attribute with the number of a family.
fn number(mut attributes: &[u8]) -> Option<u16> {
    const FAMILY_ID: u16 = 1;
    loop {
        let (head, _) = attributes.split_first_chunk::<4>()?;
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        if u16::from_ne_bytes([head[2], head[3]]) == FAMILY_ID {
            return Some(u16::from_ne_bytes(attributes.get(4..6)?.try_into().ok()?));
        }
        attributes = attributes.get(len.max(4).next_multiple_of(4)..)?;
    }
}

/// Creates a link in the folder once its file exists; files that a device lacks are skipped.
fn link(to: &Path, name: &str) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(20);
    while to.starts_with("/dev") && !to.exists() && Instant::now() < until {
        sleep(Duration::from_millis(20));
    }
    if !to.exists() && !to.starts_with("/dev") {
        return Ok(());
    }
    let link = Path::new(FOLDER).join(name);
    // The link may exist from an earlier run.
    let _ = fs::remove_file(&link);
    symlink(to, &link).map_err(at(&link.display().to_string()))
}

/// Runs commands in a shell.
fn run(commands: &str) -> Result<()> {
    let output = Command::new("sh")
        .args(["-ec", commands])
        .stdin(Stdio::null())
        .output()
        .map_err(|why| Error::new("run", "sh", why))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::new("run", commands, std::io::Error::other(said)))
}

fn at(path: &str) -> impl Fn(std::io::Error) -> Error + use<> {
    let path = path.to_owned();
    move |why| Error::new("set up", &path, why)
}
