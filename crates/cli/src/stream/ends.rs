//! What a stream leads from and to, as it is written on the command line.

use std::path::PathBuf;
use std::str::FromStr;

use super::path;

/// A source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum From {
    /// `iio:` or `synth:`, as the library names it.
    Device(String),
    /// Where to listen.
    Listen(String),
    /// A recording.
    File(PathBuf),
}

/// A destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum To {
    /// `iio:`, as the library names it.
    Device(String),
    /// Where to connect to.
    Connect(String),
    /// A recording.
    File(PathBuf),
    Null,
}

impl FromStr for From {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = match text.split_once(':') {
            Some(("iio" | "synth", name)) if !name.is_empty() => Some(Self::Device(text.into())),
            Some(("tcp-listen", address)) if !address.is_empty() => {
                Some(Self::Listen(address.into()))
            }
            Some(("file", name)) => path(name).map(Self::File),
            _ => None,
        };
        known.ok_or_else(|| {
            "allowed: iio:NAME, synth:PATTERN, tcp-listen:[HOST:]PORT, file:NAME".to_owned()
        })
    }
}

impl FromStr for To {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = match text.split_once(':') {
            Some(("iio", name)) if !name.is_empty() => Some(Self::Device(text.into())),
            Some(("tcp", address)) if address.contains(':') => Some(Self::Connect(address.into())),
            Some(("file", name)) => path(name).map(Self::File),
            Some(("null", "")) => Some(Self::Null),
            _ => None,
        };
        known.ok_or_else(|| "allowed: iio:NAME, tcp:HOST:PORT, file:NAME, null:".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_what_they_say() {
        assert_eq!("iio:vconv0".parse(), Ok(From::Device("iio:vconv0".into())));
        assert_eq!("synth:sine?rate=1M".parse(), Ok(From::Device("synth:sine?rate=1M".into())));
        assert_eq!("tcp-listen:4950".parse(), Ok(From::Listen("4950".into())));
        assert_eq!("tcp-listen:[::1]:4950".parse(), Ok(From::Listen("[::1]:4950".into())));
        assert_eq!("file:a:b.sigmf-meta".parse(), Ok(From::File("a:b.sigmf-meta".into())));
        assert_eq!("iio:vconv0-tx".parse(), Ok(To::Device("iio:vconv0-tx".into())));
        assert_eq!("tcp:host:4950".parse(), Ok(To::Connect("host:4950".into())));
        assert_eq!("file:x".parse(), Ok(To::File("x".into())));
        assert_eq!("null:".parse(), Ok(To::Null));
        for bad in
            ["", "iio", "iio:", "synth:", "tcp:a:1", "file:", "null:", "IIO:a", "tcp-listen:"]
        {
            assert!(bad.parse::<From>().unwrap_err().contains("tcp-listen"), "{bad}");
        }
        for bad in ["", "iio:", "synth:sine", "tcp:", "tcp:host", "tcp-listen:1", "null:x", "file:"]
        {
            assert!(bad.parse::<To>().unwrap_err().contains("null:"), "{bad}");
        }
    }
}
