//! Numbered members in doubly linked lists. A member is in at most one list, and every step is O(1).

/// No member.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
    list: u32,
}

const OUT: Link = Link {
    before: NONE,
    after: NONE,
    list: NONE,
};

/// Lists of members with zero-based numbers.
#[derive(Clone, Debug)]
pub(super) struct Order {
    /// First and last member of each list.
    ends: Vec<(u32, u32)>,
    links: Vec<Link>,
}

impl Order {
    pub fn new(lists: usize) -> Self {
        Order {
            ends: vec![(NONE, NONE); lists],
            links: Vec::new(),
        }
    }

    /// Appends the member to the list, after removing it from its current one.
    pub fn append(&mut self, list: usize, member: u32) {
        self.remove(member);
        if self.links.len() <= member as usize {
            self.links.resize(member as usize + 1, OUT);
        }
        let last = std::mem::replace(&mut self.ends[list].1, member);
        match last {
            NONE => self.ends[list].0 = member,
            last => self.links[last as usize].after = member,
        }
        self.links[member as usize] = Link {
            before: last,
            after: NONE,
            list: list as u32,
        };
    }

    /// Removes the member from its list, if it is in one.
    pub fn remove(&mut self, member: u32) {
        let Some(list) = self.list_of(member) else {
            return;
        };
        let Link { before, after, .. } = std::mem::replace(&mut self.links[member as usize], OUT);
        match before {
            NONE => self.ends[list].0 = after,
            before => self.links[before as usize].after = after,
        }
        match after {
            NONE => self.ends[list].1 = before,
            after => self.links[after as usize].before = before,
        }
    }

    /// Returns the list that the member is in.
    pub fn list_of(&self, member: u32) -> Option<usize> {
        let list = self.links.get(member as usize)?.list;
        (list != NONE).then_some(list as usize)
    }

    /// Returns the list's first member.
    pub fn first(&self, list: usize) -> Option<u32> {
        Some(self.ends[list].0).filter(|first| *first != NONE)
    }

    /// Returns the list's members, first to last.
    pub fn members(&self, list: usize) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(self.first(list), |at| {
            Some(self.links[*at as usize].after).filter(|next| *next != NONE)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lists_hold_what_vectors_would(steps in prop::collection::vec((0usize..4, 0u32..6), 0..80)) {
            let mut order = Order::new(3);
            let mut model: Vec<Vec<u32>> = vec![Vec::new(); 3];
            for (list, member) in steps {
                model.iter_mut().for_each(|members| members.retain(|m| *m != member));
                if list < 3 {
                    model[list].push(member);
                    order.append(list, member);
                } else {
                    order.remove(member);
                }
                for (at, members) in model.iter().enumerate() {
                    prop_assert_eq!(&order.members(at).collect::<Vec<_>>(), members);
                    prop_assert_eq!(order.first(at), members.first().copied());
                }
                prop_assert_eq!(order.list_of(member), Some(list).filter(|list| *list < 3));
            }
        }
    }
}
