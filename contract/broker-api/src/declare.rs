//! Declares messages: `number Name { field: Type = slot } with DESCRIPTORS;`. The slot is a field of
//! [`crate::packet::Slots`]; the type says by its `Field` how it stands there. The same declaration writes the type,
//! its codec, and its descriptors.

/// One direction of a conversation.
macro_rules! messages {
    ($(#[$doc:meta])* $name:ident {
        $($(#[$of:meta])* $operation:literal $variant:ident
            $({ $($(#[$on:meta])* $field:ident: $type:ty = $slot:ident),+ $(,)? })?
            $(($whole:ident: $record:ty))?
            $(with $descriptors:expr)?;)+
    }) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub enum $name {
            $($(#[$of])* $variant $({ $($(#[$on])* $field: $type),+ })? $(($record))?),+
        }

        impl $name {
            #[cfg(test)]
            pub(crate) const OPERATIONS: &[u16] = &[$($operation),+];
        }

        impl $crate::packet::Message for $name {
            fn put(&self, slots: &mut $crate::packet::Slots) -> u16 {
                match self {
                    $($name::$variant $({ $($field),+ })? $(($whole))? => {
                        $($($crate::values::Field::put($field, &mut slots.$slot);)+)?
                        $($crate::values::Record::put($whole, slots);)?
                        $operation
                    })+
                }
            }

            fn take(operation: u16, slots: &mut $crate::packet::Slots) -> Result<Self, $crate::packet::Fault> {
                match operation {
                    $($operation => Ok($name::$variant
                        $({ $($field: $crate::values::taken(&mut slots.$slot, stringify!($field))?),+ })?
                        $((<$record as $crate::values::Record>::take(slots)?))?),)+
                    _ => Err($crate::packet::Fault::Operation),
                }
            }

            fn descriptors(&self) -> &'static [$crate::Descriptor] {
                match self {
                    $($($name::$variant { .. } => $descriptors,)?)+
                    #[allow(unreachable_patterns)]
                    _ => &[],
                }
            }
        }
    };
}

/// Fields that several messages have in common, or that are handed on together.
macro_rules! record {
    ($(#[$doc:meta])* $name:ident { $($(#[$on:meta])* $field:ident: $type:ty = $slot:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name {
            $($(#[$on])* pub $field: $type),+
        }

        impl $crate::values::Record for $name {
            fn put(&self, slots: &mut $crate::packet::Slots) {
                $($crate::values::Field::put(&self.$field, &mut slots.$slot);)+
            }

            fn take(slots: &mut $crate::packet::Slots) -> Result<Self, $crate::packet::Fault> {
                Ok($name { $($field: $crate::values::taken(&mut slots.$slot, stringify!($field))?),+ })
            }
        }
    };
}
