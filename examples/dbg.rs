//! dbg
use topocoll::plan::{builders::*, cost::Cost, *};
use topocoll::topology::Topology;
fn main() {
    let t = Topology::read(std::path::Path::new("topologies/dgx-h100.toml")).unwrap().cluster(4).unwrap();
    let p = Placement::gpus(&t).unwrap();
    for inner in [Method::Ring, Method::Direct] {
        for outer in [Method::Ring, Method::Direct] {
            let plan = hierarchical(
                Request { collective: Collective::AllReduce, hosts: p.hosts(), chunk_bytes: 1 << 30 },
                &[Level { ranks: 8, method: inner }, Level { ranks: 4, method: outer }],
            )
            .unwrap();
            println!("{} {:?}", plan.algorithm, Cost::of(&t, &p, &plan).unwrap());
            println!("{:?}", verify(&plan, p.hosts()));
        }
    }
}
