//! `CUDA_VISIBLE_DEVICES`: which GPUs a process may use, and in what order.

use crate::topology::detect::gpu::Gpu;

/// Indices into `gpus` in the order given, and what there is to say of it. As CUDA does, the list ends at the first
/// entry that is no GPU; a GPU named twice is an error to CUDA, and here too nothing is visible then.
pub(super) fn visible(value: Option<&str>, gpus: &[Gpu]) -> (Vec<usize>, Vec<String>) {
    let Some(value) = value else { return ((0..gpus.len()).collect(), Vec::new()) };
    let (mut chosen, mut notices) = (Vec::new(), Vec::new());
    let entries = value.split(',').map(str::trim);
    for entry in entries.filter(|e| !e.is_empty()) {
        let found = match entry.parse::<i64>() {
            Ok(index) => usize::try_from(index).ok().filter(|i| *i < gpus.len()).ok_or_else(|| {
                if index < 0 { String::new() } else { format!("there are {} GPUs, counted from 0", gpus.len()) }
            }),
            Err(_) if entry.starts_with("MIG-") => {
                Err("a MIG instance; its NVLinks and its neighbours are closed to it, so no collective can use it"
                    .into())
            }
            Err(_) => by_uuid(entry, gpus),
        };
        match found {
            Ok(i) if chosen.contains(&i) => {
                notices.push(format!("CUDA_VISIBLE_DEVICES={value}: `{entry}` is there twice, so CUDA shows no GPU"));
                return (Vec::new(), notices);
            }
            Ok(i) => chosen.push(i),
            Err(why) => {
                if !why.is_empty() {
                    notices.push(format!(
                        "CUDA_VISIBLE_DEVICES={value}: `{entry}`: {why}; it and what follows is left out"
                    ));
                }
                break;
            }
        }
    }
    if chosen.len() < gpus.len() {
        let (n, all) = (chosen.len(), gpus.len());
        notices.push(format!("CUDA_VISIBLE_DEVICES={value} shows {n} of {all} GPUs"));
    }
    (chosen, notices)
}

/// `GPU-` and as much of the UUID as tells it from the others.
fn by_uuid(entry: &str, gpus: &[Gpu]) -> Result<usize, String> {
    let wanted = entry.to_ascii_lowercase();
    if !wanted.starts_with("gpu-") {
        return Err("neither an index nor a UUID such as GPU-8f2c...".into());
    }
    let starts = |g: &Gpu| g.uuid.as_ref().is_some_and(|u| u.to_ascii_lowercase().starts_with(&wanted));
    let mut matching = gpus.iter().enumerate().filter(|(_, g)| starts(g)).map(|(i, _)| i);
    match (matching.next(), matching.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => Err("no GPU here has this UUID".into()),
        (Some(_), Some(_)) => Err("several GPUs begin so".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_cuda_reads_them() {
        let gpu = |u: &str| Gpu { uuid: Some(u.into()), ..Gpu::default() };
        let gpus = [gpu("GPU-aa01"), gpu("GPU-aa02"), gpu("GPU-bb03")];
        for (value, expected, word) in [
            (None, vec![0, 1, 2], ""),
            (Some("2,0"), vec![2, 0], "2 of 3"),
            (Some(""), vec![], "0 of 3"),
            (Some("-1,0"), vec![], "0 of 3"),
            (Some("0,-1,1"), vec![0], "1 of 3"),
            (Some("1,7,0"), vec![1], "counted from 0"),
            (Some("GPU-BB,0"), vec![2, 0], "2 of 3"),
            (Some("GPU-aa"), vec![], "several GPUs"),
            (Some("GPU-cc"), vec![], "no GPU here"),
            (Some("MIG-1234"), vec![], "MIG instance"),
            (Some("NoDevFiles"), vec![], "neither an index"),
            (Some("0,0"), vec![], "twice"),
            (Some("0, 1 ,2"), vec![0, 1, 2], ""),
        ] {
            let (chosen, notices) = visible(value, &gpus);
            assert_eq!(chosen, expected, "{value:?}");
            assert!(notices.join("\n").contains(word), "{value:?}: {notices:?}");
        }
    }
}
