//! Ranks of one host meet at an abstract Unix socket that rank 0 opens, and get the shared memory from it.
//!
//! The kernel says who is at the other end: another user is turned away, whatever it sends. Nothing exists in the
//! file system, so nothing is left behind.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use crate::bootstrap::World;
use crate::runtime::wire::shm::Segment;
use crate::{Error, Result};

const MAGIC: &[u8; 8] = b"topocol1";
/// Magic, rank, size.
const HELLO: usize = 24;
/// A stranger that says nothing holds up the others no longer than this.
const HELLO_TIME: Duration = Duration::from_secs(2);
/// The most that rank 0 may send along.
const MAX_NOTE: u64 = 16 << 20;

/// What a rank has after joining.
pub(crate) struct Joined {
    pub segment: Segment,
    /// What rank 0 sent to all.
    pub note: Vec<u8>,
}

/// Meets the other ranks of `world`. Rank 0 reserves `staging` bytes for each rank and gives `note` to all.
pub(crate) fn join(
    world: &World,
    staging: usize,
    timeout: Duration,
    note: impl FnOnce() -> Result<Vec<u8>>,
) -> Result<Joined> {
    let deadline = Instant::now() + timeout;
    let name = format!("topocoll/{}/{:016x}", rustix::process::getuid().as_raw(), crate::fnv(world.job.as_bytes()));
    let address = SocketAddr::from_abstract_name(name.as_bytes())
        .map_err(|e| Error::Bootstrap(format!("the job's socket cannot be named: {e}")))?;
    if world.rank == 0 {
        lead(world, staging, timeout, deadline, &address, note)
    } else {
        follow(world, deadline, timeout, &address)
    }
}

fn lead(
    world: &World,
    staging: usize,
    timeout: Duration,
    deadline: Instant,
    address: &SocketAddr,
    note: impl FnOnce() -> Result<Vec<u8>>,
) -> Result<Joined> {
    let listener = UnixListener::bind_addr(address).map_err(|e| match e.kind() {
        ErrorKind::AddrInUse => Error::Bootstrap(format!(
            "another rank 0 is at the socket of job `{}`; give each job a TOPOCOLL_JOB of its own",
            world.job
        )),
        _ => Error::Bootstrap(format!("listening for the other ranks: {e}")),
    })?;
    listener.set_nonblocking(true).map_err(|e| Error::Bootstrap(format!("the job's socket: {e}")))?;
    let mut peers: Vec<Option<UnixStream>> = (0..world.size).map(|_| None).collect();
    let outcome = (|| {
        let segment = Segment::create(world.size, staging, &[0])?;
        let note = note()?;
        while peers.iter().skip(1).any(Option::is_none) {
            let missing = |peers: &[Option<UnixStream>]| (1..peers.len()).filter(|r| peers[*r].is_none()).collect();
            if !readable(&listener, deadline)? {
                return Err(Error::Timeout { waited: timeout, ranks: missing(&peers), phase: "joining".into() });
            }
            let Ok((stream, _)) = listener.accept() else { continue };
            admit(world, stream, &mut peers)?;
        }
        for (rank, peer) in peers.iter_mut().enumerate().skip(1) {
            let Some(peer) = peer else { continue };
            give(peer, &segment, &note).map_err(|e| left(rank, &e))?;
        }
        // Everyone holds its presence record before anyone looks for it.
        for (rank, peer) in peers.iter_mut().enumerate().skip(1) {
            let Some(peer) = peer else { continue };
            let mut ready = [0; 1];
            within(peer, deadline).and_then(|()| peer.read_exact(&mut ready)).map_err(|e| match e.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                    Error::Timeout { waited: timeout, ranks: vec![rank], phase: "joining".into() }
                }
                _ => left(rank, &e),
            })?;
        }
        Ok(Joined { segment, note })
    })();
    let word = match &outcome {
        Ok(_) => Vec::new(),
        Err(e) => e.to_string().into_bytes(),
    };
    for peer in peers.iter_mut().flatten() {
        // A peer that is gone by now is found gone later.
        let _ = peer.write_all(&word);
    }
    outcome
}

/// Takes one connection: a rank of this job gets its seat, anyone else is turned away and the rest go on.
fn admit(world: &World, mut stream: UnixStream, peers: &mut [Option<UnixStream>]) -> Result<()> {
    let mine = rustix::process::getuid();
    if !socket_peercred(&stream).is_ok_and(|who| who.uid == mine) {
        return Ok(());
    }
    let mut hello = [0; HELLO];
    let heard = stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_read_timeout(Some(HELLO_TIME)))
        .and_then(|()| stream.read_exact(&mut hello));
    if heard.is_err() || &hello[..8] != MAGIC {
        return Ok(());
    }
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| hello[at + i])) as usize;
    let (rank, size) = (word(8), word(16));
    let wrong = if size != world.size || rank == 0 || rank >= size {
        format!(
            "ranks do not agree on the job: rank 0 was told of {} ranks, and one came as rank {rank} of {size}",
            world.size
        )
    } else if peers[rank].is_some() {
        format!("two processes came as rank {rank}; each needs a rank of its own")
    } else {
        peers[rank] = Some(stream);
        return Ok(());
    };
    let error = Error::Bootstrap(wrong);
    // It has no seat, so it is told here; should it be gone, nothing is lost.
    let _ = stream.write_all(error.to_string().as_bytes());
    Err(error)
}

fn left(rank: usize, why: &dyn std::fmt::Display) -> Error {
    Error::PeerLost { rank, host: "this host".into(), why: format!("while joining: {why}") }
}

fn give(peer: &mut UnixStream, segment: &Segment, note: &[u8]) -> std::io::Result<()> {
    let fds = [segment.file().as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    let len = (note.len() as u64).to_le_bytes();
    peer.set_write_timeout(Some(HELLO_TIME))?;
    sendmsg(&*peer, &[IoSlice::new(&len)], &mut ancillary, SendFlags::NOSIGNAL)?;
    peer.write_all(note)
}

fn follow(world: &World, deadline: Instant, timeout: Duration, address: &SocketAddr) -> Result<Joined> {
    let late = || Error::Timeout { waited: timeout, ranks: vec![0], phase: "joining".into() };
    let mut pause = Duration::from_millis(1);
    let mut stream = loop {
        match UnixStream::connect_addr(address) {
            Ok(stream) => break stream,
            // Rank 0 is not there yet, or its queue is full.
            Err(e)
                if matches!(e.kind(), ErrorKind::ConnectionRefused | ErrorKind::WouldBlock | ErrorKind::NotFound) =>
            {
                if Instant::now() > deadline {
                    return Err(late());
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(50));
            }
            Err(e) => return Err(Error::Bootstrap(format!("connecting to rank 0: {e}"))),
        }
    };
    let uid = rustix::process::getuid();
    let peer = socket_peercred(&stream).map_err(Error::os("asking who rank 0 is"))?;
    if peer.uid != uid {
        return Err(Error::Bootstrap(format!(
            "user {} holds the socket of job `{}`, not this user ({})",
            peer.uid.as_raw(),
            world.job,
            uid.as_raw()
        )));
    }
    let io = |e: std::io::Error| match e.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => late(),
        _ => left(0, &e),
    };
    let mut hello = Vec::with_capacity(HELLO);
    hello.extend_from_slice(MAGIC);
    hello.extend_from_slice(&(world.rank as u64).to_le_bytes());
    hello.extend_from_slice(&(world.size as u64).to_le_bytes());
    stream.write_all(&hello).map_err(io)?;
    within(&stream, deadline).map_err(io)?;
    let (len, file) = take(&stream, deadline).map_err(io)?;
    let Some(file) = file else {
        // No memory came with it: the bytes are rank 0's reason.
        let mut text = len.to_vec();
        let _ = (&stream).take(4096).read_to_end(&mut text);
        return Err(if text.is_empty() {
            left(0, &"it closed the connection")
        } else {
            Error::Bootstrap(format!("rank 0 gave up: {}", String::from_utf8_lossy(&text)))
        });
    };
    let len = <[u8; 8]>::try_from(len.as_slice()).map(u64::from_le_bytes).ok().filter(|l| *l <= MAX_NOTE);
    let len = len.ok_or_else(|| Error::Bootstrap("rank 0 sent something that is no topology".into()))?;
    let mut note = vec![0; len as usize];
    within(&stream, deadline).and_then(|()| stream.read_exact(&mut note)).map_err(io)?;
    let segment = Segment::open(file, world.size, &[world.rank])?;
    stream.write_all(&[1]).map_err(io)?;
    let mut verdict = String::new();
    within(&stream, deadline).and_then(|()| (&stream).take(4096).read_to_string(&mut verdict)).map_err(io)?;
    if verdict.is_empty() {
        Ok(Joined { segment, note })
    } else {
        Err(Error::Bootstrap(format!("rank 0 gave up: {verdict}")))
    }
}

/// Up to eight bytes, and the descriptor that came with them.
fn take(stream: &UnixStream, deadline: Instant) -> std::io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let mut bytes = [0; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    if !readable(stream, deadline).map_err(|e| std::io::Error::other(e.to_string()))? {
        return Err(ErrorKind::TimedOut.into());
    }
    let got = recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let fd = ancillary.drain().find_map(|m| match m {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok((bytes[..got.bytes].to_vec(), fd))
}

/// Lets the next reads take until `deadline`, but no longer.
fn within(stream: &UnixStream, deadline: Instant) -> std::io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    stream.set_read_timeout(Some(left))
}

fn readable(fd: &impl AsFd, deadline: Instant) -> Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&left)) {
            Ok(n) => return Ok(n > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(Error::os("waiting on the job's socket")(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::wire::shm::Gone;

    fn world(rank: usize, size: usize, job: &str) -> World {
        World { rank, size, local_size: None, launcher: "test", job: format!("{job} {}", std::process::id()) }
    }

    fn start(rank: usize, size: usize, job: &'static str, seconds: f64) -> std::thread::JoinHandle<Result<Joined>> {
        std::thread::spawn(move || {
            join(&world(rank, size, job), 4096, Duration::from_secs_f64(seconds), || Ok(b"the note".to_vec()))
        })
    }

    #[test]
    fn all_get_the_same_memory_and_the_note() {
        let ranks: Vec<_> = (0..5).rev().map(|r| start(r, 5, "meet", 10.0)).collect();
        let joined: Vec<Joined> = ranks.into_iter().map(|t| t.join().unwrap().unwrap()).collect();
        joined[2].segment.fail(Gone::Late, 3);
        for j in &joined {
            assert_eq!((j.segment.failure(), j.note.as_slice()), (Some((Gone::Late, 3)), &b"the note"[..]));
        }
    }

    #[test]
    fn whoever_is_missing_is_named_in_time() {
        let begun = Instant::now();
        let (zero, two) = (start(0, 4, "late", 0.3), start(2, 4, "late", 0.3));
        let text = zero.join().unwrap().err().unwrap().to_string();
        assert!(text.contains("ranks 1, 3 in joining"), "{text}");
        let text = two.join().unwrap().err().unwrap().to_string();
        assert!(text.contains("rank"), "{text}");
        assert!(begun.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn doubles_and_strangers_are_turned_away() {
        let zero = start(0, 3, "double", 5.0);
        let (a, b) = (start(1, 3, "double", 5.0), start(1, 3, "double", 5.0));
        let text = zero.join().unwrap().err().unwrap().to_string();
        assert!(text.contains("two processes came as rank 1"), "{text}");
        for r in [a, b] {
            assert!(r.join().unwrap().is_err());
        }
        // Noise at the door does not stop the others.
        let job = world(0, 2, "noise").job;
        let zero = start(0, 2, "noise", 10.0);
        let name = format!("topocoll/{}/{:016x}", rustix::process::getuid().as_raw(), crate::fnv(job.as_bytes()));
        let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        for noise in [&b""[..], b"GET / HTTP/1.0\r\n\r\n aaaaaaaaaaaaaaaaaaaaaa", &[0xff; 100]] {
            let stream = loop {
                if let Ok(s) = UnixStream::connect_addr(&address) {
                    break s;
                }
            };
            let _ = (&stream).write_all(noise);
        }
        let one = start(1, 2, "noise", 10.0);
        assert!(zero.join().unwrap().is_ok() && one.join().unwrap().is_ok());
    }

    #[test]
    fn sizes_that_differ_are_said() {
        let (zero, one) = (start(0, 2, "size", 5.0), start(1, 3, "size", 5.0));
        assert!(zero.join().unwrap().err().unwrap().to_string().contains("rank 1 of 3"));
        assert!(one.join().unwrap().err().unwrap().to_string().contains("rank 1 of 3"));
    }
}
