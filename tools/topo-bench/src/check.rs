//! `topo-bench check`.

use std::fmt::Write;

use topocoll::plan::check::{Finding, check};

use crate::{Result, detect, output};

/// Exits with 1 if something was found.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    source: detect::Source,
    /// As JSON: to FILE, or to the standard output.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
}

pub fn run(args: &Args) -> Result<bool> {
    let t = args.source.load()?;
    let found = check(&t);
    match &args.json {
        Some(to) => {
            output::json(&serde_json::json!({ "topology": t.name(), "findings": found, "notices": t.notices() }), to)?
        }
        None => output::print(&words(t.name(), &found, t.notices())),
    }
    Ok(found.is_empty())
}

fn words(name: &str, found: &[Finding], notices: &[String]) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{text}");
    };
    match found.len() {
        0 => line(format!("{name}: nothing found that slows collectives")),
        n => line(format!("{name}: {n} finding{}, the costliest first", if n == 1 { "" } else { "s" })),
    }
    for (i, f) in found.iter().enumerate() {
        let lost = (1.0 - f.now / f.could) * 100.0;
        line(String::new());
        line(format!("{}. {}", i + 1, f.what));
        line(format!("   costs  {:.1} of {:.1} GB/s ({lost:.0} % lost): {}", f.now / 1e9, f.could / 1e9, f.measure));
        line(format!("   do     {}", f.remedy));
    }
    if !notices.is_empty() {
        line(String::new());
    }
    notices.iter().for_each(|n| line(format!("note: {n}")));
    out
}
