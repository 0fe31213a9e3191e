//! Tests of the budget for replies that are not read yet.

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, poll_fn};

use super::*;

/// A budget of 400 bytes: 100 per connection.
fn budget() -> ReplyBudget {
    ReplyBudget::new(400)
}

fn reserve(connection: &ConnectionReplies, bytes: usize) -> BoxFuture<'static, Reservation> {
    Box::pin(connection.reserve(bytes))
}

fn reserve_now(connection: &ConnectionReplies, bytes: usize) -> Option<Reservation> {
    reserve(connection, bytes).now_or_never()
}

fn is_closed(connection: &ConnectionReplies) -> bool {
    poll_fn(|context| connection.poll_closed(context))
        .now_or_never()
        .is_some()
}

#[tokio::test]
async fn a_connection_has_a_quarter_of_the_budget() {
    let budget = budget();
    let connection = budget.add_connection();
    let first = reserve_now(&connection, 60).unwrap();
    let mut second = reserve(&connection, 41);
    assert!((&mut second).now_or_never().is_none());
    // A later reservation does not overtake it.
    let mut third = reserve(&connection, 1);
    assert!((&mut third).now_or_never().is_none());
    assert!(reserve_now(&budget.add_connection(), 100).is_some());
    first.shrink(59);
    drop(second.await);
    drop(third.await);
    assert!(reserve_now(&connection, 42).is_none());
    assert!(reserve_now(&connection, 41).is_some());
}

#[tokio::test]
async fn a_cancelled_wait_frees_its_reservation() {
    let connection = budget().add_connection();
    let first = reserve_now(&connection, 100).unwrap();
    let mut waiting = reserve(&connection, 50);
    assert!((&mut waiting).now_or_never().is_none());
    drop(first);
    // Granted, but not received.
    drop(waiting);
    assert!(reserve_now(&connection, 100).is_some());
}

#[tokio::test]
async fn try_grow_needs_room_and_resize_does_not() {
    let connection = budget().add_connection();
    let first = reserve_now(&connection, 10).unwrap();
    assert!(first.try_grow(100));
    assert!(!first.try_grow(101));
    first.resize(1_000);
    assert!(reserve_now(&budget().add_connection(), 100).is_some());
    assert!(reserve_now(&connection, 0).is_none());
    first.resize(100);
    assert!(reserve_now(&connection, 0).is_some());
}

#[tokio::test]
async fn the_connection_with_the_fewest_bytes_is_served_first() {
    let budget = budget();
    let connections = [(); 6].map(|()| budget.add_connection());
    let mut held: Vec<_> = connections[..4]
        .iter()
        .map(|connection| reserve_now(connection, 90))
        .collect();
    let own = reserve_now(&connections[4], 40).unwrap();
    let mut more = reserve(&connections[4], 50);
    let mut new = reserve(&connections[5], 50);
    assert!((&mut more).now_or_never().is_none());
    assert!((&mut new).now_or_never().is_none());
    // Replies that are not complete are not stalled.
    sleep(STALL_TIMEOUT * 2).await;
    assert!(!connections.iter().any(is_closed));
    held.pop();
    assert!((&mut more).now_or_never().is_none());
    assert!((&mut new).now_or_never().is_some());
    drop(own);
    assert!((&mut more).now_or_never().is_some());
}

#[tokio::test]
async fn stalled_connections_are_closed_only_if_others_wait() {
    let budget = budget();
    let connections = [(); 6].map(|()| budget.add_connection());
    let held = connections[..4]
        .iter()
        .map(|connection| reserve_now(connection, 100).unwrap());
    let held: Vec<_> = held.collect();
    for reply in &held {
        reply.progress();
    }
    sleep(STALL_TIMEOUT).await;
    for reply in &held[2..] {
        reply.progress();
    }
    held[1].shrink(90);
    assert!(!connections.iter().any(is_closed));
    let mut waiting = reserve(&connections[4], 100);
    assert!((&mut waiting).now_or_never().is_none());
    let closed = connections.iter().map(is_closed);
    assert_eq!(
        closed.collect::<Vec<_>>(),
        [true, false, false, false, false, false]
    );
    // The memory of one closed connection suffices.
    assert!(!is_closed(&connections[1]));
    let mut other = reserve(&connections[5], 100);
    assert!((&mut other).now_or_never().is_none());
    drop(held);
    assert!((&mut waiting).now_or_never().is_some());
    assert!((&mut other).now_or_never().is_some());
}

#[tokio::test]
async fn one_reply_may_be_larger_than_the_budget() {
    let budget = budget();
    let connections = [(); 3].map(|()| budget.add_connection());
    let large = reserve_now(&connections[0], 1_000).unwrap();
    let mut second = reserve(&connections[1], 101);
    assert!((&mut second).now_or_never().is_none());
    // Smaller replies do not wait for it.
    for connection in &connections {
        assert!(reserve_now(connection, 100).is_some());
    }
    large.progress();
    sleep(STALL_TIMEOUT * 2).await;
    assert!(is_closed(&connections[0]));
    drop(large);
    drop(second.await);
    assert!(reserve_now(&connections[1], 500).is_some());
}
