//! In-flight requests of one connection, found by msgid without a search.

/// Number of bits of a msgid that hold a slot number. The higher bits count uses of the slot, so
/// that a response to an earlier request in the slot is recognised.
const PLACE_BITS: u32 = 20;
/// Maximum number of in-flight requests on one connection.
pub(crate) const UNDER_WAY_MAX: usize = 1 << PLACE_BITS;
/// Bit that is set in every msgid, so that each msgid is encoded in five bytes.
const LONG: u32 = 0x8000_0000;
const USE_MASK: u32 = (LONG >> PLACE_BITS) - 1;

/// Values stored for each in-flight request until its response arrives.
#[derive(Debug)]
pub(crate) struct Calls<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Calls<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Calls<T> {
    /// Creates an empty collection.
    pub(crate) const fn new() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Stores a value and returns its msgid; `None` if too many requests are in flight.
    pub(crate) fn begin(&mut self, call: T) -> Option<u32> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.places.len() < UNDER_WAY_MAX => {
                self.places.push((0, None));
                (self.places.len() - 1) as u32
            }
            None => return None,
        };
        let (uses, kept) = &mut self.places[place as usize];
        *uses = (*uses + 1) & USE_MASK;
        *kept = Some(call);
        Some(LONG | *uses << PLACE_BITS | place)
    }

    /// Removes and returns the value of the request with this msgid.
    pub(crate) fn end(&mut self, msgid: u32) -> Option<T> {
        let place = self.place(msgid)?;
        let call = self.places[place as usize].1.take()?;
        self.free.push(place);
        Some(call)
    }

    /// Returns true if the request with this msgid is in flight.
    pub(crate) fn is_under_way(&self, msgid: u32) -> bool {
        self.place(msgid)
            .is_some_and(|place| self.places[place as usize].1.is_some())
    }

    fn place(&self, msgid: u32) -> Option<u32> {
        let place = msgid & (UNDER_WAY_MAX as u32 - 1);
        let (uses, _) = self.places.get(place as usize)?;
        (msgid == LONG | uses << PLACE_BITS | place).then_some(place)
    }

    /// Returns the number of in-flight requests.
    pub(crate) fn under_way(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Removes and returns the values of all in-flight requests.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.free.clear();
        std::mem::take(&mut self.places)
            .into_iter()
            .filter_map(|(_, call)| call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_finds_its_call_and_no_other() {
        let mut calls = Calls::new();
        let ids: Vec<u32> = (0..100).map(|n| calls.begin(n).unwrap()).collect();
        assert!(ids.iter().all(|id| *id >= LONG));
        assert_eq!(
            (calls.end(ids[7]), calls.end(ids[7]), calls.under_way()),
            (Some(7), None, 99)
        );
        let again = calls.begin(1_000).unwrap();
        assert_ne!(again, ids[7]);
        assert_eq!(
            (calls.is_under_way(ids[7]), calls.is_under_way(again)),
            (false, true)
        );
        for stranger in [0, 7, LONG, LONG | 100, u32::MAX] {
            assert_eq!(calls.end(stranger), None);
        }
        // The use count of a slot wraps after 2,048 uses.
        let mut last = again;
        for _ in 0..5_000 {
            calls.end(last).unwrap();
            last = calls.begin(1).unwrap();
            assert_eq!(last & 0xfffff, again & 0xfffff);
        }
        let mut left: Vec<i32> = calls.drain().collect();
        left.sort_unstable();
        assert_eq!((left.len(), calls.under_way()), (100, 0));
    }

    #[test]
    fn there_is_an_end_to_calls_under_way() {
        let mut calls = Calls::new();
        assert!((0..UNDER_WAY_MAX).all(|_| calls.begin(()).is_some()));
        assert_eq!(calls.begin(()), None);
    }
}
