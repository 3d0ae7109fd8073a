//! One rank of a launcher's: `mpirun -n 4 target/release/examples/all_reduce`, or with torchrun or srun.

use topocoll::{Communicator, ReduceOp, Result};

fn main() -> Result<()> {
    let comm = Communicator::from_env()?;
    let mut gradients = vec![comm.rank() as f32; 1 << 20];
    comm.all_reduce_in_place(&mut gradients, ReduceOp::Avg)?;
    if comm.rank() == 0 {
        println!("the mean of {} ranks is {}", comm.size(), gradients[0]);
    }
    Ok(())
}
