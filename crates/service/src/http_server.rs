//! Checks and limits of an HTTP server's connections, which hyper does not have.
//!
//! | module | purpose |
//! | --- | --- |
//! | `activity` | time limits of heads, idle connections and clients that do not read |
//! | `head` | rejects heads that two readers can read differently |
//! | `head_check` | checks the bytes of heads before hyper normalizes them |
//! | `stall` | ends an HTTP/2 stream whose client does not read its response |

pub mod activity;
pub mod head;
pub mod head_check;
pub mod stall;
