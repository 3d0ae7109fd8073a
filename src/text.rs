//! Figures as people read them.

/// Bytes for people, in the 1024s that collectives are measured in.
pub fn size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, n)| bytes >= *n) {
        Some((unit, n)) if bytes.is_multiple_of(*n) => format!("{} {unit}", bytes / n),
        Some((unit, n)) => format!("{:.1} {unit}", bytes as f64 / *n as f64),
        None => format!("{bytes} B"),
    }
}

/// Seconds for people.
pub fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.3} s"),
        s if s >= 1e-3 => format!("{:.3} ms", s * 1e3),
        s => format!("{:.2} us", s * 1e6),
    }
}

/// `[0, 1, 2, 5]` as `0-2, 5`.
pub fn list(ranks: &[usize]) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut i = 0;
    while i < ranks.len() {
        let mut j = i;
        while j + 1 < ranks.len() && ranks[j + 1] == ranks[j] + 1 {
            j += 1;
        }
        out.push(if j > i { format!("{}-{}", ranks[i], ranks[j]) } else { ranks[i].to_string() });
        i = j + 1;
    }
    out.join(", ")
}

/// Sorts names in the order that people count them: `mlx5_9` before `mlx5_10`.
pub fn natural(name: &str) -> (String, u64) {
    let word = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (word.into(), name[word.len()..].parse().unwrap_or(0))
}
