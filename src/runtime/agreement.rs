//! What each rank asks of a collective, in a form that others can compare.

use crate::Error;
use crate::plan::Collective;
use crate::runtime::element::{DType, ReduceOp};
use crate::runtime::wire::shm::Descriptor;

/// One rank's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked {
    /// `None` is a barrier.
    pub collective: Option<Collective>,
    /// Elements of a block.
    pub count: u64,
    pub dtype: DType,
    /// `None` where nothing is reduced.
    pub op: Option<ReduceOp>,
    /// Names the plan; ranks may choose differently where their environments differ.
    pub plan: u64,
}

impl Asked {
    pub fn encode(self) -> Descriptor {
        let (kind, root) = match self.collective {
            None => (0, 0),
            Some(Collective::AllReduce) => (1, 0),
            Some(Collective::ReduceScatter) => (2, 0),
            Some(Collective::AllGather) => (3, 0),
            Some(Collective::Broadcast { root }) => (4, root as u64),
            Some(Collective::Reduce { root }) => (5, root as u64),
            Some(Collective::AllToAll) => (6, 0),
        };
        let op = self.op.map_or(u8::MAX, |o| o as u8);
        Descriptor([kind, root, self.count, self.dtype as u64, u64::from(op), self.plan])
    }

    fn words(Descriptor([kind, root, count, dtype, op, _]): Descriptor) -> String {
        let name = match kind {
            0 => return "barrier".into(),
            1 => "all-reduce".into(),
            2 => "reduce-scatter".into(),
            3 => "all-gather".into(),
            4 => format!("broadcast from rank {root}"),
            5 => format!("reduce to rank {root}"),
            6 => "all-to-all".into(),
            other => format!("unknown collective {other}"),
        };
        let dtype = u8::try_from(dtype).ok().and_then(DType::from_code);
        let dtype = dtype.map_or("unknown type".into(), |d| d.to_string());
        let op = u8::try_from(op).ok().and_then(ReduceOp::from_code).map(|o| format!(" {o}")).unwrap_or_default();
        format!("{name}{op} of {count} {dtype}")
    }
}

/// The error that every rank returns where they did not ask the same.
pub(crate) fn disagreement(sequence: u64, asked: &[Descriptor]) -> Error {
    let mut groups: Vec<(Descriptor, Vec<usize>)> = Vec::new();
    for (rank, a) in asked.iter().enumerate() {
        match groups.iter_mut().find(|(d, _)| d == a) {
            Some((_, ranks)) => ranks.push(rank),
            None => groups.push((*a, vec![rank])),
        }
    }
    let request = |d: Descriptor| (d.0[..5].to_vec(), Asked::words(d));
    let same_request = groups.iter().all(|(d, _)| request(*d).0 == request(groups[0].0).0);
    let said = groups
        .iter()
        .map(|(d, ranks)| {
            let plural = if ranks.len() == 1 { "" } else { "s" };
            let plan = if same_request { format!(" by plan {:016x}", d.0[5]) } else { String::new() };
            format!("rank{plural} {} asked {}{plan}", crate::text::list(ranks), Asked::words(*d))
        })
        .collect();
    Error::Disagreement { sequence, said }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_says_who_asked_what() {
        let a = Asked {
            collective: Some(Collective::AllReduce),
            count: 8,
            dtype: DType::Bf16,
            op: Some(ReduceOp::Sum),
            plan: 1,
        };
        let b = Asked { count: 9, ..a };
        let c = Asked { collective: None, ..a };
        let all = [a, b, a, a, c].map(Asked::encode);
        assert_eq!(
            disagreement(3, &all).to_string(),
            "ranks disagree on collective number 3: ranks 0, 2-3 asked all-reduce sum of 8 bf16; \
             rank 1 asked all-reduce sum of 9 bf16; rank 4 asked barrier"
        );
        let text = disagreement(0, &[a.encode(), Asked { plan: 2, ..a }.encode()]).to_string();
        assert!(text.contains("by plan 0000000000000001") && text.contains("by plan 0000000000000002"), "{text}");
    }
}
