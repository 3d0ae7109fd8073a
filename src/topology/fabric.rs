//! What joins hosts: families of networks, in figures that follow from the hosts' ports.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// A network between hosts that are alike. Every link between switches is as wide as the shape needs to be free of
/// blocking, divided by the oversubscription.
///
/// As text, in files and on the command line: `rails`, `rails:leaf=32,spines=4`,
/// `leaf-spine:leaf=16,spines=4,oversubscription=2`, `dragonfly:groups=8,routers=4`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fabric {
    /// NIC `i` of every host meets NIC `i` of the others only. With `leaf`, so many hosts share a rail's leaf switch and
    /// the rail's leaves are joined by `spines`; without, a rail is one switch.
    Rails {
        /// Hosts a leaf.
        leaf: Option<usize>,
        /// Spines a rail.
        spines: usize,
        /// A leaf's ports to hosts against those to spines.
        oversubscription: f64,
    },
    /// All NICs of a host are at one leaf switch, every leaf at every spine (a two-level folded Clos).
    LeafSpine {
        /// Hosts a leaf.
        leaf: usize,
        /// Spines.
        spines: usize,
        /// A leaf's ports to hosts against those to spines.
        oversubscription: f64,
    },
    /// Groups of routers, all joined with each other inside a group, and each group with each by one cable
    /// (Kim, Dally, Scott, Abts, ISCA 2008).
    Dragonfly {
        /// Groups.
        groups: usize,
        /// Routers a group.
        routers: usize,
        /// What hosts inject against what leaves a group.
        oversubscription: f64,
    },
}

/// The most switches of a kind that a text may ask for.
const MAX: usize = 1 << 16;

impl FromStr for Fabric {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let fail = |why: String| {
            Error::Argument(format!(
                "`{text}` is no fabric: {why}; expected rails, rails:leaf=N,spines=N, leaf-spine:leaf=N,spines=N or \
                 dragonfly:groups=N,routers=N, each with oversubscription=X if wanted"
            ))
        };
        let (kind, rest) = text.trim().split_once(':').unwrap_or((text.trim(), ""));
        let known: &[&str] = match kind.trim() {
            "rails" | "leaf-spine" => &["leaf", "spines"],
            "dragonfly" => &["groups", "routers"],
            other => return Err(fail(format!("there is no kind `{other}`"))),
        };
        let (mut numbers, mut oversubscription) = ([None; 2], 1.0);
        for pair in rest.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| fail(format!("`{pair}` is no key=value")))?;
            let (key, value) = (key.trim(), value.trim());
            if key == "oversubscription" {
                oversubscription =
                    value.parse().ok().filter(|x: &f64| x.is_finite() && (0.01..=1000.0).contains(x)).ok_or_else(
                        || fail(format!("oversubscription is `{value}`, not a number from 0.01 to 1000")),
                    )?;
                continue;
            }
            let slot = known.iter().position(|k| *k == key).ok_or_else(|| fail(format!("{kind} has no `{key}`")))?;
            let number = value.parse().ok().filter(|n| (1..=MAX).contains(n));
            numbers[slot] = Some(number.ok_or_else(|| fail(format!("{key} is `{value}`, not 1 to {MAX}")))?);
        }
        let need = |slot: usize| numbers[slot].ok_or_else(|| fail(format!("`{}` is missing", known[slot])));
        Ok(match kind.trim() {
            "rails" => Self::Rails {
                leaf: numbers[0],
                spines: if numbers[0].is_some() { need(1)? } else { numbers[1].unwrap_or(1) },
                oversubscription,
            },
            "leaf-spine" => Self::LeafSpine { leaf: need(0)?, spines: need(1)?, oversubscription },
            _ => Self::Dragonfly { groups: need(0)?, routers: need(1)?, oversubscription },
        })
    }
}

impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let over = match *self {
            Self::Rails { leaf: None, .. } => return f.write_str("rails"),
            Self::Rails { leaf: Some(leaf), spines, oversubscription } => {
                write!(f, "rails:leaf={leaf},spines={spines}")?;
                oversubscription
            }
            Self::LeafSpine { leaf, spines, oversubscription } => {
                write!(f, "leaf-spine:leaf={leaf},spines={spines}")?;
                oversubscription
            }
            Self::Dragonfly { groups, routers, oversubscription } => {
                write!(f, "dragonfly:groups={groups},routers={routers}")?;
                oversubscription
            }
        };
        if over == 1.0 { Ok(()) } else { write!(f, ",oversubscription={over}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_go_there_and_back() {
        for text in [
            "rails",
            "rails:leaf=32,spines=4",
            "leaf-spine:leaf=16,spines=4,oversubscription=2",
            "dragonfly:groups=8,routers=4,oversubscription=1.5",
        ] {
            assert_eq!(text.parse::<Fabric>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn nonsense_says_what_is_expected() {
        for (text, word) in [
            ("mesh", "no kind `mesh`"),
            ("rails:leaf=4", "`spines` is missing"),
            ("leaf-spine:leaf=0,spines=1", "leaf is `0`"),
            ("leaf-spine:leaf=1", "`spines` is missing"),
            ("dragonfly:groups=2,spines=1", "no `spines`"),
            ("dragonfly:groups", "no key=value"),
            ("rails:oversubscription=NaN", "oversubscription is `NaN`"),
        ] {
            let error = text.parse::<Fabric>().unwrap_err().to_string();
            assert!(error.contains(word) && error.contains("expected rails"), "{error}");
        }
    }
}
