//! Where results go.

use std::io::Write;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use serde::Serialize;

use crate::Result;

/// Writes to the standard output. A reader that has gone away (`| head`) is no error.
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

/// Writes to a file, or to the standard output for `-`.
pub fn text(text: &str, to: &str) -> Result<()> {
    if to == "-" {
        print(text);
        return Ok(());
    }
    std::fs::write(to, text).map_err(|e| format!("{to}: {e}").into())
}

/// Writes `value` as JSON to a file, or to the standard output for `-`.
pub fn json(value: &impl Serialize, to: &str) -> Result<()> {
    let write = |out: &mut dyn Write| -> std::io::Result<()> {
        serde_json::to_writer_pretty(&mut *out, value)?;
        out.write_all(b"\n")?;
        out.flush()
    };
    if to == "-" {
        if write(&mut std::io::BufWriter::new(std::io::stdout().lock())).is_err() {
            std::process::exit(0);
        }
        return Ok(());
    }
    let file = std::fs::File::create(to).map_err(|e| format!("{to}: {e}"))?;
    write(&mut std::io::BufWriter::new(file)).map_err(|e| format!("{to}: {e}").into())
}

/// Numbers in columns, to the right; the first column to the left.
pub fn table(header: Vec<String>, rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    for row in rows {
        table.add_row(row);
    }
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_cell_alignment(if i == 0 { CellAlignment::Left } else { CellAlignment::Right });
    }
    let lines: Vec<String> = table.lines().map(|l| format!("{}\n", l.trim_end())).collect();
    lines.concat()
}

/// Minimum, median and maximum.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Spread {
    pub min: f64,
    pub median: f64,
    pub max: f64,
}

impl Spread {
    /// Of at least one sample; zeros without any.
    pub fn of(samples: &[f64]) -> Self {
        let mut s = samples.to_vec();
        s.sort_by(f64::total_cmp);
        let at = |i: usize| s.get(i).copied().unwrap_or(0.0);
        let middle = s.len() / 2;
        let median = if s.len() % 2 == 1 { at(middle) } else { (at(middle.saturating_sub(1)) + at(middle)) / 2.0 };
        Self { min: at(0), median, max: at(s.len().saturating_sub(1)) }
    }

    pub fn scaled(self, by: f64) -> Self {
        Self { min: self.min * by, median: self.median * by, max: self.max * by }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Spread { min: 1.0, median: 2.0, max: 3.0 });
        assert_eq!(Spread::of(&[4.0, 1.0]).median, 2.5);
        assert_eq!(Spread::of(&[]).median, 0.0);
    }
}
