//! Short notation for many ids: `gpu[0-7]`, `h[0-3]/gpu[0-7]`, `gpu[0,2,4-7]`.

/// The most ids that one notation may stand for.
pub(super) const MAX: usize = 200_000;

/// All ids that `text` stands for, the last bracket varying fastest.
pub(super) fn expand(text: &str) -> Result<Vec<String>, String> {
    let mut all = vec![String::new()];
    let mut rest = text;
    while let Some(open) = rest.find(['[', ']']) {
        if rest.as_bytes()[open] == b']' {
            return Err(format!("`{text}`: `]` without `[`"));
        }
        let (plain, tail) = (&rest[..open], &rest[open + 1..]);
        let Some(close) = tail.find(']') else { return Err(format!("`{text}`: `[` without `]`")) };
        let numbers = numbers(&tail[..close]).map_err(|e| format!("`{text}`: {e}"))?;
        if all.len().saturating_mul(numbers.len()) > MAX {
            return Err(format!("`{text}` stands for more than {MAX} ids"));
        }
        all = all.iter().flat_map(|a| numbers.iter().map(move |n| format!("{a}{plain}{n}"))).collect();
        rest = &tail[close + 1..];
    }
    for id in &mut all {
        id.push_str(rest);
    }
    if all.iter().any(String::is_empty) { Err("an id is empty".into()) } else { Ok(all) }
}

/// Numbers as they are written: `08-10` is 08, 09, 10.
fn numbers(list: &str) -> Result<Vec<String>, String> {
    let mut out = Vec::new();
    for item in list.split(',').map(str::trim) {
        let number =
            |s: &str| s.trim().parse::<usize>().map_err(|_| format!("`{item}` is no number and no range such as 0-7"));
        let (start, end) = item.split_once('-').unwrap_or((item, item));
        let (first, last) = (number(start)?, number(end)?);
        if last < first {
            return Err(format!("`{item}` runs backwards; {last}-{first} is meant"));
        }
        if last - first >= MAX || out.len() + (last - first) >= MAX {
            return Err(format!("`{item}` stands for more than {MAX} ids"));
        }
        let width = if start.trim().starts_with('0') { start.trim().len() } else { 0 };
        if width > 20 {
            return Err(format!("`{item}` has too many zeros"));
        }
        out.extend((first..=last).map(|n| format!("{n:0width$}")));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_expanded_in_order() {
        assert_eq!(expand("gpu0").unwrap(), ["gpu0"]);
        assert_eq!(expand("gpu[0-2]").unwrap(), ["gpu0", "gpu1", "gpu2"]);
        assert_eq!(expand("n[08-10]").unwrap(), ["n08", "n09", "n10"]);
        assert_eq!(expand("h[0-1]/n[1,4-5]x").unwrap(), ["h0/n1x", "h0/n4x", "h0/n5x", "h1/n1x", "h1/n4x", "h1/n5x"]);
    }

    #[test]
    fn nonsense_is_an_error() {
        for bad in [
            "",
            "a[",
            "a]",
            "a[]",
            "a[x]",
            "a[3-1]",
            "a[0-]",
            "a[-1]",
            "a[0-999999999]",
            "a[0-999][0-999]",
            "a[99999999999999999999]",
        ] {
            assert!(expand(bad).is_err(), "{bad}");
        }
    }
}
