select date_trunc('day', ts) as day, symbol, avg(close) as mean_close
from {{ source('lake', 'prices') }}
group by all
