//! `{"format": "topocoll-plan", "version": 1, "plan": {...}}`, the plan as the instruction set has it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::plan::Plan;
use crate::{Error, Result};

const FORMAT: &str = "topocoll-plan";
const VERSION: u64 = 1;

#[derive(Serialize)]
struct Written<'a> {
    format: &'a str,
    version: u64,
    plan: &'a Plan,
}

/// What tells which reader a file needs.
#[derive(Deserialize)]
struct Head {
    format: Option<Value>,
    version: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Whole {
    #[serde(rename = "format")]
    _format: String,
    #[serde(rename = "version")]
    _version: u64,
    plan: Plan,
}

pub(super) fn write(plan: &Plan) -> Result<String> {
    let text = serde_json::to_string(&Written { format: FORMAT, version: VERSION, plan });
    text.map(|t| t + "\n").map_err(|e| Error::Plan(format!("writing it as JSON: {e}")))
}

pub(super) fn read(text: &str, file: &str) -> Result<Plan> {
    let fail = |line, message| Error::PlanFile { file: file.into(), line, message };
    let syntax = |e: serde_json::Error| {
        fail(Some(e.line()), format!("{e}; a plan is expected, as `topo-bench plan --format json` writes it"))
    };
    let head: Head = serde_json::from_str(text).map_err(syntax)?;
    let found =
        |v: &Option<Value>| v.as_ref().map_or("none".into(), |v| v.to_string().chars().take(40).collect::<String>());
    if head.format.as_ref().and_then(Value::as_str) != Some(FORMAT) {
        let what = found(&head.format);
        return Err(fail(
            None,
            format!("`format` is {what}, expected \"{FORMAT}\" (or MSCCL's XML, which begins with <algo>)"),
        ));
    }
    if head.version.as_ref().and_then(Value::as_u64) != Some(VERSION) {
        let what = found(&head.version);
        return Err(fail(None, format!("`version` is {what}, expected {VERSION}; write it again with this release")));
    }
    let whole: Whole = serde_json::from_str(text).map_err(syntax)?;
    Ok(whole.plan)
}
