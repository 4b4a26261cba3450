//! Rules on schemas, and values that leave their column and come back.

mod pieces;
mod random;
mod rules;
mod values;
