//! `256M`, `4K`, `1.5G`: sizes as nccl-tests takes them.

/// Bytes; K, M, G and T are powers of 1024, with or without a B or iB after them.
pub fn parse(text: &str) -> Result<u64, String> {
    let plain = text.trim();
    let head = plain.strip_suffix("iB").or_else(|| plain.strip_suffix('B')).unwrap_or(plain);
    let (number, shift) = match head.char_indices().last() {
        Some((at, 'k' | 'K')) => (&head[..at], 10),
        Some((at, 'm' | 'M')) => (&head[..at], 20),
        Some((at, 'g' | 'G')) => (&head[..at], 30),
        Some((at, 't' | 'T')) => (&head[..at], 40),
        _ => (head, 0),
    };
    let wrong = || format!("`{text}` is no size; a number of bytes such as 8, 64K, 256M or 1G is expected");
    if let Ok(whole) = number.trim().parse::<u64>() {
        return whole.checked_mul(1 << shift).ok_or_else(|| format!("`{text}` is more than 2^64 bytes"));
    }
    let value: f64 = number.trim().parse().map_err(|_| wrong())?;
    let bytes = value * (1u64 << shift) as f64;
    if bytes.is_finite() && bytes >= 0.0 && bytes < u64::MAX as f64 { Ok(bytes as u64) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_1024s() {
        assert_eq!(parse("8"), Ok(8));
        assert_eq!(parse("64K"), Ok(65536));
        assert_eq!(parse("256MiB"), Ok(256 << 20));
        assert_eq!(parse("1.5G"), Ok(3 << 29));
        assert_eq!(parse("9223372036854775808"), Ok(1 << 63));
        for bad in ["", "K", "-1", "x", "1e99", "nan", "99999999999G", "99999999999999999999", "é"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
