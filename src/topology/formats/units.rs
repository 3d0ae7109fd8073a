//! `25 GB/s`, `200 Gbit/s`, `1.3 us`, `64 GiB`; a bare number is bytes per second, seconds, bytes.

const RATES: [(&str, f64); 8] = [
    ("TB/s", 1e12),
    ("GB/s", 1e9),
    ("MB/s", 1e6),
    ("kB/s", 1e3),
    ("B/s", 1.0),
    ("Tbit/s", 125e9),
    ("Gbit/s", 125e6),
    ("Mbit/s", 125e3),
];
const TIMES: [(&str, f64); 4] = [("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9), ("s", 1.0)];
const SIZES: [(&str, f64); 6] = [
    ("TiB", (1u64 << 40) as f64),
    ("GiB", (1u64 << 30) as f64),
    ("MiB", (1u64 << 20) as f64),
    ("KiB", 1024.0),
    ("GB", 1e9),
    ("B", 1.0),
];

/// Bytes per second.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    scaled(text, &RATES)
}

/// Seconds.
pub(super) fn time(text: &str) -> Result<f64, String> {
    scaled(text, &TIMES)
}

/// Bytes.
pub(super) fn size(text: &str) -> Result<f64, String> {
    scaled(text, &SIZES)
}

fn scaled(text: &str, units: &[(&str, f64)]) -> Result<f64, String> {
    let (number, factor) = units
        .iter()
        .find_map(|(unit, factor)| Some((text.trim().strip_suffix(unit)?, *factor)))
        .unwrap_or((text.trim(), 1.0));
    let value: Result<f64, _> = number.trim().parse();
    value.map(|v| v * factor).map_err(|_| {
        let names: Vec<&str> = units.iter().map(|(u, _)| *u).collect();
        format!("found {text:?}, expected a number and one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_what_they_say() {
        assert_eq!(rate("25 GB/s"), Ok(25e9));
        assert_eq!(rate("200Gbit/s"), Ok(25e9));
        assert_eq!(time("1.5 us").map(|t| (t * 1e9).round()), Ok(1500.0));
        assert_eq!(size("2 MiB"), Ok(2097152.0));
        assert!(rate("25 GiB").is_err() && rate("fast").is_err() && time("3 GB/s").is_err());
    }
}
