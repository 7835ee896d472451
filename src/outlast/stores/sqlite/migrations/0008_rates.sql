-- Up to when starts are paid for, in microseconds.
UPDATE outlast_rates SET paid_until = paid_until * 1000;
