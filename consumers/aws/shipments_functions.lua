-- Shared by the scripts of a deployment's shipments. Moments are whole milliseconds, on this server's clock.
-- KEYS[1] is a key of the deployment's slot; every other key is ARGV[1], the prefix `{b:name}:shipment:`, and a name.
-- A record is one attempt at one job, `job-attempt`. waiting: sorted set, record by when it joined; tenants: hash,
-- record -> tenant; in: hash, record -> the shipment that it went into; open: sorted set, shipment by when it is to be
-- looked at; over: the same of those that have ended, by when; epoch: in which all this is whole; job:G hash; records:G set, what is still to be concluded.

local P = ARGV[1]

local function whole(number)
  return string.format('%.0f', number)
end

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
