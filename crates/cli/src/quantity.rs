//! Quantities as they are written on the command line.

use std::time::Duration;

/// Units of a time, in seconds. One that ends like another one comes first.
const TIMES: [(&str, f64); 4] = [("us", 1e-6), ("ms", 1e-3), ("min", 60.0), ("s", 1.0)];

/// A time: a number of seconds such as 1 or 0.2, or one with a unit.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let allowed = || {
        "allowed: seconds from 0 on, such as 1 or 0.2, or a time such as 500ms or 2min".to_owned()
    };
    let unit = TIMES.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, *scale)));
    let (number, scale) = unit.unwrap_or((text, 1.0));
    let number: f64 = number.parse().map_err(|_| allowed())?;
    Duration::try_from_secs_f64(number * scale).map_err(|_| allowed())
}

/// A number of bytes such as 65536, 64K, 1M, 2G.
pub fn size(text: &str) -> Result<usize, String> {
    scaled(text, 1024)
        .and_then(|bytes| usize::try_from(bytes).ok())
        .ok_or_else(|| "allowed: bytes from 1 on, such as 4096, 64K, 1M or 1G (of 1024)".to_owned())
}

/// A number of samples such as 1000, 5k, 2M.
pub fn count(text: &str) -> Result<u64, String> {
    scaled(text, 1000)
        .ok_or_else(|| "allowed: samples from 1 on, such as 500, 10k, 1M (of 1000)".to_owned())
}

fn scaled(text: &str, kilo: u64) -> Option<u64> {
    let (number, power) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 1),
        b'M' => (&text[..text.len() - 1], 2),
        b'G' => (&text[..text.len() - 1], 3),
        _ => (text, 0),
    };
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = number.parse().ok().filter(|number| digits && *number > 0)?;
    number.checked_mul(kilo.pow(power))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_what_a_clock_can_hold() {
        assert_eq!(seconds("0.2"), Ok(Duration::from_millis(200)));
        assert_eq!(seconds("0"), Ok(Duration::ZERO));
        let times = [("60s", 60_000), ("250ms", 250), ("2min", 120_000), ("1500us", 1)];
        for (text, millis) in times {
            assert_eq!(seconds(text).unwrap().as_millis(), millis, "{text}");
        }
        for bad in ["-1", "nan", "inf", "1e300", "1e300min", "s", "1 s", "1h", "soon", ""] {
            assert!(seconds(bad).unwrap_err().contains("0.2"), "{bad:?}");
        }
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!((size("4096"), size("64K"), size("64k")), (Ok(4096), Ok(65_536), Ok(65_536)));
        assert_eq!((size("1M"), size("2G")), (Ok(1 << 20), Ok(2 << 30)));
        assert_eq!((count("5k"), count("1M")), (Ok(5000), Ok(1_000_000)));
        for bad in ["", "0", "-1", "+1", "K", "1.5M", "1T", "64KB", "18446744073709551615K", "1é"]
        {
            assert!(size(bad).unwrap_err().contains("64K"), "{bad}");
            assert!(count(bad).unwrap_err().contains("10k"), "{bad}");
        }
    }
}
