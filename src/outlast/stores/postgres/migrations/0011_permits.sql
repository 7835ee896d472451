-- Up to when starts are paid for, in microseconds; and `has_permit_to_come` is told what is freed.
UPDATE outlast.limits SET paid_until = paid_until * 1000;
DROP FUNCTION IF EXISTS outlast.has_permit_to_come(text, bigint, text);
