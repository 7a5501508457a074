//! `resource.Quantity` of the Kubernetes API.

#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Quantity;
