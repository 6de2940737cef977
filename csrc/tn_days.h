/* tn_days.h - the day of a step, by the one rule of tnctl.h (tn_days_of_steps). */
#ifndef TN_DAYS_H
#define TN_DAYS_H

#include "tn_table.h"

/* The day of a step in a table; 0 while the table has no days. */
uint32_t tn_day_of(const tn_table *table, uint32_t step);

#endif
