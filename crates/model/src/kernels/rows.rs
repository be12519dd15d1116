//! Rows inside a larger array: the part of each token's values that one operation reads.

/// Rows of `width` values, `stride` apart.
#[derive(Debug, Clone, Copy)]
pub struct StridedRows<'a> {
    values: &'a [f32],
    width: usize,
    stride: usize,
}

impl<'a> StridedRows<'a> {
    /// The columns `at..at + width` of an array whose rows have `stride` values.
    pub fn new(values: &'a [f32], at: usize, width: usize, stride: usize) -> Self {
        assert!(at + width <= stride, "columns {at} to {} of rows of {stride} values", at + width);
        assert!(values.len().is_multiple_of(stride.max(1)), "{} values in rows of {stride}", values.len());
        Self { values: values.get(at..).unwrap_or_default(), width, stride }
    }

    pub fn count(&self) -> usize {
        self.values.len().div_ceil(self.stride.max(1))
    }

    /// Values of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    #[inline(always)]
    pub fn row(&self, index: usize) -> &'a [f32] {
        &self.values[index * self.stride..][..self.width]
    }

    /// The same columns of the rows `from..to`.
    pub fn part(&self, from: usize, to: usize) -> Self {
        assert!(from <= to && to <= self.count(), "rows {from} to {to} of {}", self.count());
        let end = self.values.len().min(to * self.stride);
        Self { values: &self.values[(from * self.stride).min(end)..end], ..*self }
    }
}
