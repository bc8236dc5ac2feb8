-- Shared by the board's scripts. Moments are whole milliseconds since the epoch, on this server's clock.
-- KEYS[1] is a key of the tenant's slot; every other key is ARGV[1], the tenant's prefix `{t:name}:`, and a name.

local P = ARGV[1]
local LATE_ATTEMPT = 10000 -- and the number of an attempt: what it used after it was given up (ledger.py)
local TERMINAL = {completed = true, failed = true, cancelled = true, expired = true, rejected = true}

local function whole(number)
  return string.format('%.0f', number)
end

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Milliseconds to YYYY-MM-DD in the proleptic Gregorian calendar (os.date is not there).
local function day_of(ms)
  local z = math.floor(ms / 86400000) + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local day = doy - math.floor((153 * mp + 2) / 5) + 1
  local month = mp < 10 and mp + 3 or mp - 9
  local year = yoe + era * 400 + (month <= 2 and 1 or 0)
  return string.format('%04d-%02d-%02d', year, month, day)
end

-- Tell every process that watches this job; what they get is the job's name, `tenant id`.
local function wake(job, name)
  local watchers = redis.call('HGET', job, 'watchers')
  if watchers then
    for channel in string.gmatch(watchers, '[^,]+') do redis.call('PUBLISH', channel, name) end
  end
end

-- Batches. `batch:<id>` is a hash, `:open` its jobs that have not ended, `:ended` lines to be written, `:out` and `:err`
-- where written ones lie, `:events` what happened. `batches:active` says when each may be taken by another driver.

local function batch_name(id)
  return string.sub(P, 4, -3) .. ' batch:' .. id
end

-- Something happened that its driver waits for; one that does not wait looks by itself.
local function wake_driver(key, id)
  if redis.call('HDEL', key, 'asleep') == 0 then return end
  redis.call('PUBLISH', string.match(redis.call('HGET', key, 'owner'), '^[^|]+'), batch_name(id))
end

local function batch_event(key, id, kind, now)
  local h = redis.call('HMGET', key, 'state', 'total', 'completed', 'failed')
  local number = redis.call('HINCRBY', key, 'seq', 1)
  local text = string.format(
    '{"type":"batch.%s","sequence_number":%.0f,"batch":"batch_%s","status":"%s","at":%.3f,' ..
    '"request_counts":{"total":%s,"completed":%s,"failed":%s}}',
    kind, number, id, h[1], now / 1000, h[2] or '0', h[3] or '0', h[4] or '0')
  redis.call('XADD', key .. ':events', 'MAXLEN', '~', 1000, number .. '-0', 'e', text)
  wake(key, batch_name(id))
end

-- How far it is, once a second at most, and at its last line.
local function batch_progress(key, id, now)
  local h = redis.call('HMGET', key, 'progress_at', 'total', 'completed', 'failed')
  local ended = tonumber(h[3] or 0) + tonumber(h[4] or 0)
  if now - tonumber(h[1] or 0) >= 1000 or ended == tonumber(h[2] or 0) then
    redis.call('HSET', key, 'progress_at', whole(now))
    batch_event(key, id, 'progress', now)
  end
  wake_driver(key, id)
end

-- A job has ended: where it is a batch's line, count it there, once.
local function line_ended(job, id, state, now)
  local batch = redis.call('HGET', job, 'batch')
  if not batch then return end
  local key = P .. 'batch:' .. batch
  if redis.call('SREM', key .. ':open', id) == 0 then return end
  redis.call('HINCRBY', key, state, 1)
  redis.call('RPUSH', key .. ':ended', id)
  batch_progress(key, batch, now)
end

-- Add the dollars of an attempt, and those of them that did not buy the answer that its job has.
local function add_dollars(key, prefix, c)
  if c.usd == '' then
    redis.call('HINCRBY', key, prefix .. 'unpriced', 1)
    return
  end
  redis.call('HINCRBY', key, prefix .. 'usd', c.usd)
  local is_useful = c.concluded and string.find(c.lines, '"outcome":"completed"', 1, true)
  if not is_useful and c.usd ~= '0' then redis.call('HINCRBY', key, prefix .. 'waste', c.usd) end
end

-- What an attempt at a line of a batch has used.
local function charge_batch(batch, c)
  local key = P .. 'batch:' .. batch
  if redis.call('EXISTS', key) == 0 then return end
  redis.call('HINCRBY', key, 'attempts', 1)
  add_dollars(key, '', c)
  if c.concluded then redis.call('HINCRBY', key, 'concluded', 1) end
  for _, line in ipairs(cjson.decode(c.lines).lines) do
    redis.call('HINCRBY', key, 'meter:' .. line.meter, whole(line.quantity))
  end
end

-- Add to one row of a rollup.
local function roll_up(key, prefix, c, ttl_ms)
  redis.call('HINCRBY', key, prefix .. 'attempts', 1)
  redis.call('HINCRBY', key, prefix .. 'tokens', c.tokens)
  add_dollars(key, prefix, c)
  if c.concluded then redis.call('HINCRBY', key, prefix .. 'jobs', 1) end
  redis.call('PEXPIRE', key, ttl_ms)
end

-- Count an attempt in the rollups, once whatever happens; false when it is counted already.
-- c: attempt, lines (JSON), usd (picodollars as text, '' is unpriced), tokens, deployment, lane, microbatch, concluded
local function count(job, c, now)
  -- A board that was lost or set back during the call knows of fewer attempts: the next one must not have this number.
  local number = tonumber(c.attempt)
  if number < LATE_ATTEMPT and number > tonumber(redis.call('HGET', job, 'attempts') or 0) then
    redis.call('HSET', job, 'attempts', c.attempt)
  end
  if redis.call('HSETNX', job, 'charged:' .. c.attempt, c.lines) == 0 then return false end
  roll_up(P .. 'costs:' .. day_of(now), c.deployment .. '|' .. c.lane .. '|', c, 35 * 86400000)
  local batch = redis.call('HGET', job, 'batch')
  if batch then charge_batch(batch, c) end
  if c.microbatch ~= '' then
    local key = P .. 'microbatch:' .. c.microbatch
    redis.call('HSET', key, 'deployment', c.deployment, 'lane', c.lane, 'last', whole(now))
    redis.call('HSETNX', key, 'first', whole(now))
    roll_up(key, '', c, 8 * 86400000)
    if redis.call('ZADD', P .. 'microbatches', 'NX', whole(now), c.microbatch) == 1 then
      redis.call('ZREMRANGEBYRANK', P .. 'microbatches', 0, -10001)
    end
  end
  return true
end

-- Charge an attempt: count it, and let its lines wait in the outbox; false when it is charged already.
local function charge(job, id, c, now)
  if not count(job, c, now) then return false end
  redis.call('HSET', P .. 'outbox', id .. ':' .. c.attempt, whole(now) .. '\n' .. c.lines)
  return true
end

-- The tenant's list of jobs, and the one of their kind, where that has one: members of score 0, whose ids are in order.
local function list(job, id)
  redis.call('ZADD', P .. 'jobs', 0, id)
  local kind = redis.call('HGET', job, 'kind')
  if kind then redis.call('ZADD', P .. 'jobs:' .. kind, 0, id) end
end

local function unlist(job, id)
  redis.call('ZREM', P .. 'jobs', id)
  local kind = redis.call('HGET', job, 'kind')
  if kind then redis.call('ZREM', P .. 'jobs:' .. kind, id) end
end

-- It no longer counts among the tenant's unfinished jobs, nor among those of its class.
local function uncount(job, id)
  redis.call('ZREM', P .. 'unfinished', id)
  local class = redis.call('HGET', job, 'class')
  if class then redis.call('ZREM', P .. 'unfinished:' .. class, id) end
end

-- The jobs that a backend has, by when they are to be looked at: its own collectors look there, and no others.
local function kept_by(backend)
  return P .. 'submitted:' .. backend
end

-- Its backend does not have it any more.
local function not_submitted(job, id)
  local backend = redis.call('HGET', job, 'kept_by')
  if backend then redis.call('ZREM', kept_by(backend), id) end
  redis.call('HDEL', job, 'submitted', 'kept_by')
end

-- A failed job is to run again: what its end has left behind goes.
local function revive(job)
  redis.call('HSET', job, 'deliveries', '0', 'revived_at', whole(now_ms()))
  redis.call('HDEL', job, 'late', 'error', 'finished', 'gone', 'usage', 'not_before', 'ended_by', 'hop', 'problem')
end

-- Make a state final: nothing waits for this job any more, and its event waits in the outbox.
local function conclude(job, id, name, state, event, keep_ms, result_ttl_ms, now)
  redis.call('HSET', job, 'state', state, 'finished', whole(now), 'gone', whole(now + result_ttl_ms))
  redis.call('HDEL', job, 'owner', 'lease', 'cancel', 'open', 'counted')
  not_submitted(job, id)
  redis.call('ZREM', P .. 'running', id)
  redis.call('ZREM', P .. 'unpublished', id)
  uncount(job, id)
  redis.call('HSET', P .. 'outbox', id .. ':event', whole(now) .. '\n' .. event)
  redis.call('PEXPIRE', job, math.max(keep_ms, result_ttl_ms))
  redis.call('PEXPIRE', P .. 'input:' .. id, math.max(result_ttl_ms, 1))
  line_ended(job, id, state, now)
  wake(job, name)
end
